"""Pools: of the master configs that ship, of others, and of a running master."""

from types import SimpleNamespace

import pytest
import yaml
from determined.common.api import bindings

from cluster.pools import Pool, configured_pools, running_pools
from detalbert.errors import UserError
from tests.conftest import ROOT


def pools_of(name):
    config = yaml.safe_load((ROOT / "cluster" / f"master-{name}.yaml").read_text())
    return configured_pools(config, file=name)


def test_pools_of_aws():
    pools = pools_of("aws-modern")
    spot = pools["aws-spot-p4d-24xlarge"]
    assert spot.gpu.name == "A100"
    assert spot._replace(gpu=None, price=0) == Pool(
        name="aws-spot-p4d-24xlarge",
        machine="p4d.24xlarge",
        slots=8,
        spot=True,
        max_machines=9,
        region="",  # to be filled in
        price=0,
    )
    assert pools["aux-cpu"].slots == 0
    assert pools["aux-cpu"].gpu is None
    assert [name for name, pool in pools.items() if pool.is_default] == ["aws-p4d-24xlarge"]


def test_pools_elsewhere():
    assert pools_of("gcp")["gcp-preemptible-v100"] == Pool("gcp-preemptible-v100")
    assert pools_of("local") == {"default": Pool(name="default", is_default=True)}
    assert configured_pools({"resource_manager": {"type": "agent"}}, "m").keys() == {"default"}


def test_a_machine_that_the_catalog_lacks_has_unknown_slots():
    provider = {"type": "aws", "region": "us-west-2", "instance_type": "p9.huge"}
    config = {"resource_pools": [{"pool_name": "a", "provider": provider}]}
    pool = configured_pools(config, "m")["a"]
    assert (pool.slots, pool.region, pool.max_machines) == (None, "us-west-2", 5)


def test_another_file_is_no_master():
    with pytest.raises(UserError, match="job.yaml: not a master config: it has no resource_pools"):
        configured_pools({"name": "job"}, file="job.yaml")


def test_pools_of_a_running_master(monkeypatch):
    def answer(name, kind, **keys):
        row = {"instanceType": "", "slotsPerAgent": -1, "maxAgents": 0, "defaultComputePool": False}
        aws = keys.pop("aws", None)
        details = SimpleNamespace(aws=aws)
        kind = getattr(bindings.v1ResourcePoolType, kind)
        return SimpleNamespace(name=name, type=kind, details=details, **{**row, **keys})

    def agent(pool, slots, enabled=True):
        names = dict.fromkeys(map(str, range(slots)))
        return SimpleNamespace(resourcePools=[pool], slots=names, enabled=enabled)

    on_aws = SimpleNamespace(region="eu-west-1", spotEnabled=True)
    pools = [
        answer("spot", "AWS", instanceType="p4d.24xlarge", maxAgents=3, aws=on_aws),
        answer("pods", "K8S", slotsPerAgent=4, defaultComputePool=True),
        answer("own", "STATIC"),
        answer("mixed", "STATIC"),
    ]
    agents = [agent("own", 2), agent("own", 2), agent("own", 8, enabled=False)]
    agents += [agent("mixed", 1), agent("mixed", 2)]
    answers = SimpleNamespace(resourcePools=pools, agents=agents)
    monkeypatch.setattr(bindings, "get_GetResourcePools", lambda session: answers)
    monkeypatch.setattr(bindings, "get_GetAgents", lambda session: answers)

    running = running_pools(SimpleNamespace(master="http://m"))
    spot = running["spot"]
    assert (spot.machine, spot.slots, spot.spot) == ("p4d.24xlarge", 8, True)
    assert (spot.max_machines, spot.region, spot.gpu.name) == (3, "eu-west-1", "A100")
    assert (running["pods"].slots, running["pods"].max_machines) == (4, None)
    assert running["pods"].is_default
    assert (running["own"].slots, running["own"].max_machines) == (2, 2)
    assert running["mixed"].slots is None
