"""An experiment of this package against the pools; more mistakes are in mistakes.yaml."""

import pathlib

import pytest

from tests.cluster.planted import POOL, V100_SPOT, experiment, findings, master, put


@pytest.mark.parametrize(
    ("instance", "precision", "words"),
    [
        ("m5.large", "fp16", "fp16 needs a GPU"),
        ("p2.8xlarge", "fp16", "no tensor cores for fp16"),
        ("p2.8xlarge", "fp32", None),
        ("g4dn.12xlarge", "bf16", "a T4 has no bf16"),
        ("g5.12xlarge", "bf16", None),
        ("m5.large", "auto", None),
    ],
)
def test_precision_against_the_gpu_of_the_pool(
    instance: str, precision: str, words: str | None, tmp_path: pathlib.Path
) -> None:
    cluster, config = master(), experiment("smoke.yaml")
    put(cluster, f"{POOL}.instance_type", instance)
    put(cluster, f"{POOL}.cpu_slots_allowed", True)
    put(config, "resources.resource_pool", V100_SPOT)
    put(config, "hyperparameters.precision", precision)
    found = findings(tmp_path, config, cluster)
    assert [finding.key for finding in found] == ["hyperparameters.precision"] * bool(words)
    assert not words or words in found[0].problem
