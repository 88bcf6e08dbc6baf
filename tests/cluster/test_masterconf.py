"""Every mistake planted in a master config is named; its pools are those it describes."""

import pathlib
from typing import Any

import pytest

from cluster import machines, masterconf
from tests.cluster.planted import POOL, V100_SPOT, findings, master, put

MASTER_MISTAKES = [
    ("master-aws-modern.yaml", "resource_pools[2].provider.instance_slots", None,
     "resource_pools[2].provider.instance_slots", "no p5.48xlarge: set instance_slots"),
    ("master-aws-modern.yaml", "resource_pools[2].provider.instance_slots", 4,
     "resource_pools[2].provider.instance_slots", "a p5.48xlarge has 8"),
    ("master-aws-spot.yaml", f"{POOL}.spot_max_price", 7.5, f"{POOL}.spot_max_price", "quote it"),
    ("master-aws-spot.yaml", f"{POOL}.spot_max_price", "$7.50", f"{POOL}.spot_max_price", "digits"),
    ("master-aws-spot.yaml", f"{POOL}.ssh_key_name", None, f"{POOL}.ssh_key_name", "missing"),
    ("master-aws-spot.yaml", f"{POOL}.type", None, f"{POOL}.type", "missing"),
    ("master-aws-spot.yaml", f"{POOL}.instance_type", "p3.16xlage", f"{POOL}.instance_slots",
     "did you mean 'p3.16xlarge'?"),
    ("master-aws-spot.yaml", f"{POOL}.max_instance", 3, f"{POOL}.max_instance", "'max_instances'"),
    ("master-aws-spot.yaml", f"{POOL}.spot", "yes", f"{POOL}.spot", "true or false"),
    ("master-aws-spot.yaml", f"{POOL}.root_volume_size", 50, f"{POOL}.root_volume_size", "100"),
    ("master-aws-spot.yaml", f"{POOL}.min_instances", 99, f"{POOL}.min_instances", "more than"),
    ("master-aws-spot.yaml", "resource_pools[1].pool_name", V100_SPOT, "resource_pools", "two"),
    ("master-aws-spot.yaml", "resource_pools[0].agent_reattach_enabled", True,
     "resource_pools[0].agent_reattach_enabled", "deprecated"),
    ("master-aws-spot.yaml", "resource_manager.default_aux_resource_pool", "aux",
     "resource_manager.default_aux_resource_pool", "did you mean 'aux-cpu'?"),
    ("master-aws-spot.yaml", "resource_manager.scheduler.type", "prority",
     "resource_manager.scheduler.type", "did you mean 'priority'?"),
    ("master-aws-spot.yaml", "resource_pool", [], "resource_pool", "'resource_pools'"),
    ("master-local.yaml", "checkpoint_storage.bucket", "b", "checkpoint_storage.bucket", "unknown"),
    ("master-aws-spot.yaml", f"{POOL}.max_idle_agent_period", "1d",
     f"{POOL}.max_idle_agent_period", "no duration"),
    ("master-aws-spot.yaml", f"{POOL}.max_idle_agent_period", "0s",
     f"{POOL}.max_idle_agent_period", "not more than 0"),
    ("master-aws-spot.yaml", f"{POOL}.region", "sa-east-1", f"{POOL}.region", "set image_id"),
    ("master-aws-spot.yaml", f"{POOL}.master_url", "http://10.0.0.5/det", f"{POOL}.master_url",
     "HOST:PORT"),
    ("master-aws-spot.yaml", f"{POOL}.network_interface.security_group_id", "default",
     f"{POOL}.network_interface.security_group_id", "sg-"),
    ("master-aws-spot.yaml", "db.password", "a/b", "db.password", "which '/' breaks"),
    ("master-aws-spot.yaml", "db.username", "x", "db.username", "unknown key"),
    ("master-aws-spot.yaml", "db.ssl_mode", "required", "db.ssl_mode", "one of"),
    ("master-aws-spot.yaml", "security.tls", {"key": "k"}, "security.tls", "go together"),
    ("master-aws-spot.yaml", "security.initial_user_password", "x",
     "security.initial_user_password", "less than 8"),
    ("master-aws-spot.yaml", "retention_policy.schedule", "daily", "retention_policy.schedule",
     "cron"),
    ("master-aws-spot.yaml", "task_container_defaults.network_mode", "hosts",
     "task_container_defaults.network_mode", "did you mean 'host'?"),
    ("master-aws-spot.yaml", "resource_manager.no_default_resource_pools", True,
     "resource_manager.no_default_resource_pools", "leave it out"),
    ("master-local.yaml", "scheduler", {"fit": "best"}, "scheduler", "old schema"),
    ("master-local.yaml", "additional_resource_managers",
     [{"resource_manager": {"cluster_name": "b"}, "resource_pools": [{"pool_name": "b"}]}],
     "additional_resource_managers[0].resource_manager.type", "only kubernetes"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "key", "value", "where", "words"), MASTER_MISTAKES)
def test_mistake_in_a_master_config_is_named(
    name: str, key: str, value: Any, where: str, words: str, tmp_path: pathlib.Path
) -> None:
    config = master(name)
    put(config, key, value)
    named = [finding for finding in findings(tmp_path, cluster=config) if finding.key == where]
    assert len(named) == 1 and words in named[0].problem


def test_slot_map_and_pools() -> None:
    slots = machines.DETERMINED_SLOTS
    assert (slots["p3.16xlarge"], slots["p4d.24xlarge"], slots["m5.large"]) == (8, 8, 0)
    assert not {"p5.48xlarge", "g6e.48xlarge", "g6e.xlarge"} & set(slots)
    assert not set(slots) & set(machines.EC2_GPUS)
    pools = masterconf.pools(master())
    spot = pools[V100_SPOT]
    most = master()["resource_pools"][0]["provider"]["max_instances"]
    assert (spot.slots_per_agent, spot.max_agents, spot.spot) == (8, most, True)
    assert (spot.gpu.gigabytes, spot.gpu.has_bf16) == (16, False)
    assert (pools["aws-p3-16xlarge"].spot, pools["aux-cpu"].slots_per_agent) == (False, 0)
    kind = {"gpu_type": "nvidia-l4", "gpu_num": 8, "machine_type": "g2-standard-96"}
    gcp = {"type": "gcp", "instance_type": {**kind, "preemptible": True}, "max_instances": 3}
    pool = masterconf.pools({"resource_pools": [{"pool_name": "p", "provider": gcp}]})["p"]
    assert (pool.slots_per_agent, pool.max_agents, pool.spot, pool.gpu.name) == (8, 3, True, "L4")
    assert pool.instance == "g2-standard-96 with 8 L4"
    modern = masterconf.pools(master("master-aws-modern.yaml"))
    assert modern["aws-p5-48xlarge"].slots_per_agent == 8
