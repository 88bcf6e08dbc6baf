"""Files of cluster/ that a tool fills in or merges (det deploy, Helm, det template), and pools."""

import importlib.util
import pathlib
import re
from typing import Any

import pytest
import yaml

from cluster.pools import configured_pools
from cluster.prices import price_of
from tests.cluster.planted import filled
from tests.conftest import ROOT

CLUSTER = ROOT / "cluster"
MASTERS = sorted(CLUSTER.glob("master-*.yaml"))
TEMPLATE = (CLUSTER / "det-deploy-aws.yaml.tmpl").read_text()
# https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/cloudformation-limits.html
PARAMETER_BYTES = 4096


def load(path: pathlib.Path) -> dict[str, Any]:
    return yaml.safe_load(path.read_text())


@pytest.mark.parametrize("path", MASTERS, ids=lambda path: path.stem)
def test_the_pools_of_every_master(path):
    """Machines that the prices know; one to spare beside the widest trial that ships and no more:
    an excluded node leaves room, and no second set starts."""
    configs = [load(path) for path in ROOT.glob("configs/*.yaml")]
    widest = max(config["resources"]["slots_per_trial"] for config in configs)
    pools = configured_pools(filled(path), path.name)
    assert any(pool.is_default for pool in pools.values())
    for pool in pools.values():
        if pool.machine:
            assert price_of(pool.machine) > 0
        if pool.machine and pool.slots:
            assert pool.gpu is not None
            assert pool.max_machines == widest // pool.slots + 1, pool


def stacks() -> list[pathlib.Path]:
    """CloudFormation's files of the installed Determined; importing its module wants setuptools."""
    (root,) = importlib.util.find_spec("determined").submodule_search_locations
    return sorted(pathlib.Path(root, "deploy", "aws", "templates").glob("*.yaml"))


@pytest.mark.parametrize("stack", stacks(), ids=lambda path: path.stem)
def test_the_template_uses_what_every_stack_gives(stack):
    _, _, template = TEMPLATE.partition("*/")  # without the comment at its head
    used_keys = set()
    for action in re.findall(r"{{(.*?)}}", template, re.DOTALL):
        names = re.findall(r"[ (]\$?\.([a-z_]+(?:\.[a-z_]+)*)", f" {action}")
        used_keys.update(names)

    optional = {"db.ssl_root_cert", "db.ssl_mode", "bind_mounts"}
    assert {"db.host", "resource_pools.aws", "gpu_env_image"} < used_keys
    assert used_keys - context_keys(stack.read_text()) <= optional


def context_keys(text: str) -> set[str]:
    """Return the keys of the file that the stack writes for the renderer."""
    _, _, file = text.partition("master.yaml.context\n")
    file, _, _ = file.partition("EOF\n")
    keys = set()
    parents = []  # of the line: depth and name
    for line in file.splitlines():
        match = re.match(r"( *)([a-z_]+):", line)
        if match:
            depth = len(match[1])
            parents = [parent for parent in parents if parent[0] < depth]
            parents.append((depth, match[2]))
            keys.add(".".join(name for _, name in parents))
    return keys


def test_the_template_of_det_deploy_has_the_spot_masters_pools():
    """Rendered by hand with Determined's own determined-gotmpl, on each of its stacks."""
    assert len(TEMPLATE.encode()) < PARAMETER_BYTES
    assert "<<" not in TEMPLATE  # nothing to fill in
    assert "EOF" not in TEMPLATE.split()  # ends the file on the master
    for pool in load(CLUSTER / "master-aws-spot.yaml")["resource_pools"]:
        assert pool["pool_name"] in TEMPLATE
        assert f"max_instances: {pool['provider']['max_instances']}\n" in TEMPLATE
