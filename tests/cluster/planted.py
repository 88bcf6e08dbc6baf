"""Configs that ship, as dictionaries to plant a mistake in, and what the checker says of them."""

import copy
import functools
import json
import pathlib
import re
from typing import Any, TypeAlias

import yaml

from cluster import check
from cluster.configs.schema import PLACEHOLDER
from cluster.configs.values import Finding
from tests.conftest import ROOT

Config: TypeAlias = dict[str, Any]  # of an experiment or a master

IMAGE = "registry/albert:1"

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


def checked(*configs: pathlib.Path, master: pathlib.Path | None = None) -> list[Finding]:
    """Return the findings of files, the package as the folder to upload."""
    arguments = [*map(str, configs), "--context", str(ROOT)]
    if master:
        arguments += ["--master", str(master)]
    problems, *_ = check.check_files(check.parse_flags(arguments))
    return problems


def findings(
    tmp_path: pathlib.Path,
    config: Config | None = None,
    cluster: Config | None = None,
) -> list[Finding]:
    """Return what the checker says of configs as files of their own, the package as model folder.

    An experiment that names no image gets one. That P3 is retired is left out: a pool with a type
    that Determined's map has is what most mistakes are planted in.
    """
    jobs = []
    if config is not None:
        job = tmp_path / "job.yaml"
        job.write_text(json.dumps({"environment": {"image": IMAGE}, **config}))
        jobs.append(job)
    master_file = None
    if cluster is not None:
        master_file = tmp_path / "master.yaml"
        master_file.write_text(json.dumps(cluster))

    problems = checked(*jobs, master=master_file)
    return [finding for finding in problems if "AWS launches no p3" not in finding.detail]
