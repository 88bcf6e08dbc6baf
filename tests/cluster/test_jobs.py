"""Which way a metric is better; more about experiments and pools is in mistakes.yaml."""

import pytest

from detalbert.training.metrics import RunMetrics
from tests.cluster.planted import experiment, findings
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
def test_which_way_a_metric_is_better(name, metric, smaller, tmp_path):
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
