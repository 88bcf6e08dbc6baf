"""Configs that ship, as dictionaries to plant a mistake in, and what the checker says of them."""

import copy
import functools
import re
from typing import Any

import yaml

from cluster.check import check_experiment
from cluster.pools import configured_pools
from cluster.rules import PLACEHOLDER
from tests.conftest import ROOT

Config = dict[str, Any]  # of an experiment or a master

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


def _filling(placeholder):
    text = placeholder[0].lower()
    for word, filling in _FILLINGS.items():
        if word in text:
            return filling
    return "filled-in"


@functools.lru_cache
def parsed(path):
    return yaml.safe_load(PLACEHOLDER.sub(_filling, path.read_text()))


def filled(path):
    """A config with every placeholder filled in, to be changed at will."""
    return copy.deepcopy(parsed(path))


def master(name="master-aws-spot.yaml"):
    return filled(ROOT / "cluster" / name)


def experiment(name):
    return filled(ROOT / "configs" / name)


def put(config, path, value):
    """Set `a.b[0].c`, with mappings on the way; a value of None takes the key out."""
    *parents, last = re.findall(r"[^.\[\]]+", path)
    node = config
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


def problems(config, cluster=None, folder=ROOT):
    """Return what the checker says of an experiment, by key, with a master's config or without."""
    pools = None if cluster is None else configured_pools(cluster, file="master.yaml")
    _, errors = check_experiment(config, folder, pools)
    return {error.key: error.detail for error in errors}
