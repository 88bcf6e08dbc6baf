"""Every mistake planted in a config that ships is named: see mistakes.yaml."""

import pathlib
from typing import Any

import pytest
import yaml

from tests.cluster.planted import experiment, findings, master, put

CASES = yaml.safe_load(pathlib.Path(__file__).with_name("mistakes.yaml").read_text())


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['in']}: {case['set']}"[:60])
def test_a_planted_mistake_is_named(case: dict[str, Any], tmp_path: pathlib.Path) -> None:
    of_master = case["in"].startswith("master-")
    config = (master if of_master else experiment)(f"{case['in']}.yaml")
    for where, value in case["set"].items():
        put(config, where, value)
    cluster = config if of_master else master(f"{case.get('with', 'master-aws-spot')}.yaml")
    if "type" in case:
        put(cluster, "resource_pools[0].provider.instance_type", case["type"])
        put(cluster, "resource_pools[0].provider.cpu_slots_allowed", True)
    found = findings(tmp_path, None if of_master else config, cluster)
    if case["says"] is None:
        assert found == []
        return
    named = [finding for finding in found if finding.key == case["key"]]
    assert len(named) == 1 and case["says"] in named[0].problem, found
    assert named[0].file.endswith("master.yaml" if of_master else "job.yaml")
    assert str(named[0]).count("\n") == 0
