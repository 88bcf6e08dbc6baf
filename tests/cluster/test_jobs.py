"""An experiment of this package against the pools; more mistakes are in mistakes.yaml."""

import pathlib

import pytest

from detalbert.training.metrics import RunMetrics
from tests.cluster.planted import POOL, V100_SPOT, experiment, findings, master, put
from workloads import choose


@pytest.mark.parametrize(
    ("name", "metric", "smaller"),
    [
        ("lm_local", "loss", True),
        ("lm_local", "perplexity", True),
        ("lm_local", "bits_per_byte", True),
        ("lm_local", "accuracy", False),
        ("pretrain_local", "mlm_loss", True),
        ("single", "loss", True),
        ("single", "f1", False),
    ],
)
def test_which_way_a_metric_is_better(
    name: str, metric: str, smaller: bool, tmp_path: pathlib.Path
) -> None:
    """One answer for the check, for a run whose config names no direction, and for its best."""
    config = experiment(f"{name}.yaml")
    config["searcher"] |= {"metric": metric, "smaller_is_better": smaller}
    assert findings(tmp_path, config) == []
    config["searcher"]["smaller_is_better"] = not smaller
    (finding,) = findings(tmp_path, config)
    advice = f"would keep the worst {metric}; set smaller_is_better: {str(smaller).lower()}"
    assert finding.key == "searcher.smaller_is_better" and finding.problem == advice
    del config["searcher"]["smaller_is_better"]
    choose(config).read(config, config["hyperparameters"])
    metrics = RunMetrics(tmp_path, config["searcher"])
    metrics.validations = [{"steps": step, metric: float(step)} for step in (1, 2)]
    assert metrics.best() == metrics.validations[0 if smaller else 1]


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
