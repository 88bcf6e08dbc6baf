"""Files of cluster/ that a tool fills in or merges (det deploy, Helm, det template), and pools."""

import pytest
import yaml

from cluster.pools import configured_pools
from cluster.prices import price_of
from tests.cluster.planted import filled
from tests.conftest import ROOT

CLUSTER = ROOT / "cluster"
MASTERS = sorted(CLUSTER.glob("master-*.yaml"))


def load(path):
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
