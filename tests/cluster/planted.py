"""Configs that ship, as dictionaries to plant a mistake in, and what the checker says of them."""

import copy
import functools
import pathlib
import re
from typing import Any, TypeAlias

import yaml

from cluster.check import check_experiment
from cluster.pools import configured_pools
from cluster.rules import PLACEHOLDER
from tests.conftest import ROOT

Config: TypeAlias = dict[str, Any]  # of an experiment or a master

# What stands for a placeholder that has one of these words in it.
_FILLINGS = {
    "region": "us-west-2",
    "subnet": "subnet-0123456789abcdef0",
    "security group": "sg-0123456789abcdef0",
    "profile": "arn:aws:iam::123456789012:instance-profile/agents",
    "folder": "/mnt/filled-in",
    "password": "Filled-in-1",
    "questions": "generated",
}


def _filling(placeholder: re.Match[str]) -> str:
    text = placeholder[0].lower()
    for word, filling in _FILLINGS.items():
        if word in text:
            return filling
    return "filled-in"


@functools.lru_cache
def parsed(path: pathlib.Path) -> Config:
    return yaml.safe_load(PLACEHOLDER.sub(_filling, path.read_text()))


def filled(path: pathlib.Path) -> Config:
    """A config with every placeholder filled in, to be changed at will."""
    return copy.deepcopy(parsed(path))


def master(name: str = "master-aws-spot.yaml") -> Config:
    return filled(ROOT / "cluster" / name)


def experiment(name: str) -> Config:
    return filled(ROOT / "configs" / name)


def put(config: Config, path: str, value: object) -> None:
    """Set `a.b[0].c`, with mappings on the way; a value of None takes the key out."""
    *parents, last = re.findall(r"[^.\[\]]+", path)
    node: Any = config
    for name in parents:
        if isinstance(node, dict):
            node.setdefault(name, {})
        node = node[int(name)] if name.isdigit() else node[name]
    if value is None:
        del node[last]
    elif isinstance(node, list):
        node[int(last)] = value
    else:
        node[last] = value


def problems(
    config: Config, cluster: Config | None = None, folder: pathlib.Path = ROOT
) -> dict[str, str]:
    """Return what the checker says of an experiment, by key, with a master's config or without."""
    pools = None if cluster is None else configured_pools(cluster, file="master.yaml")
    _, errors = check_experiment(config, folder, pools)
    return {error.key: error.detail for error in errors}
