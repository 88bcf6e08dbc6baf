"""Configs that ship, as dictionaries to plant a mistake in, and what the checker says of them."""

import copy
import functools
import json
import pathlib
import re
from typing import Any

import yaml

from cluster import check
from cluster.configs.schema import PLACEHOLDER
from detalbert.settings.schema import Finding
from tests.conftest import ROOT

IMAGE = "registry/albert:1"

# What stands for a placeholder that has one of these words in it.
_FILLINGS = {
    "region": "us-west-2",
    "subnet": "subnet-0123456789abcdef0",
    "security group": "sg-0123456789abcdef0",
    "profile": "arn:aws:iam::123456789012:instance-profile/agents",
    "folder": "/mnt/filled-in",
    "password": "Filled-in-1",
}


def _filling(placeholder: re.Match[str]) -> str:
    words = placeholder[0].lower()
    return next((text for word, text in _FILLINGS.items() if word in words), "filled-in")


@functools.lru_cache
def parsed(path: pathlib.Path) -> dict[str, Any]:
    return yaml.safe_load(PLACEHOLDER.sub(_filling, path.read_text()))


def filled(path: pathlib.Path) -> dict[str, Any]:
    """A config with every placeholder filled in, to be changed at will."""
    return copy.deepcopy(parsed(path))


def master(name: str = "master-aws-spot.yaml") -> dict[str, Any]:
    return filled(ROOT / "cluster" / name)


def experiment(name: str) -> dict[str, Any]:
    return filled(ROOT / "configs" / name)


def put(config: dict[str, Any], path: str, value: Any) -> None:
    """Set `a.b[0].c`, with mappings on the way; a value of None takes the key out."""
    *parents, last = re.findall(r"[^.\[\]]+", path)
    node: Any = config
    for name in parents:
        if isinstance(node, dict):
            node.setdefault(name, {})
        node = node[int(name)] if name.isdigit() else node[name]
    if value is None:
        del node[last]
    else:
        node[int(last) if isinstance(node, list) else last] = value


def checked(*configs: pathlib.Path, master: pathlib.Path | None = None) -> list[Finding]:
    """The findings of files, the package as the folder to upload."""
    words = ["--context", str(ROOT), *(["--master", str(master)] if master else [])]
    return check.check_files(check.parse_flags([*map(str, configs), *words]))[0]


def findings(
    tmp_path: pathlib.Path,
    config: dict[str, Any] | None = None,
    cluster: dict[str, Any] | None = None,
) -> list[Finding]:
    """What the checker says of configs as files of their own, the package as model folder.

    An experiment that names no image gets one. That P3 is retired is left out: a pool with a type
    that Determined's map has is what most mistakes are planted in.
    """
    paths = {}
    if config is not None:
        config = {"environment": {"image": IMAGE}, **config}
    for name, content in (("job.yaml", config), ("master.yaml", cluster)):
        if content is not None:
            paths[name] = tmp_path / name
            paths[name].write_text(json.dumps(content))
    jobs = [paths["job.yaml"]] if config is not None else []
    found = checked(*jobs, master=paths.get("master.yaml"))
    return [one for one in found if "AWS launches no p3" not in one.detail]
