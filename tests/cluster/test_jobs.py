"""Every mistake planted in an experiment config is named, alone and against the pools."""

import pathlib
from typing import Any

import pytest

from detalbert.training.metrics import RunMetrics
from tests.cluster.planted import POOL, V100_SPOT, experiment, findings, master, put
from workloads import choose

# (config, key to set, value, the finding's key, words of its text)
JOB_MISTAKES = [
    ("single", "hyperparameter", {}, "hyperparameter", "did you mean 'hyperparameters'?"),
    ("single", "resources.slot_per_trial", 1, "resources.slot_per_trial", "'slots_per_trial'"),
    ("single", "hyperparameters.learning_rat", 1e-5, "hyperparameters.learning_rat", "did you"),
    ("single", "data.cache", "x", "data.cache", "did you mean 'cache_dir'?"),
    ("single", "max_restarts", "five", "max_restarts", "a whole number of at least 0, got 'five'"),
    ("single", "hyperparameters.epochs", "two", "hyperparameters.epochs", "expected a number"),
    ("single", "max_restarts", -1, "max_restarts", "less than 0"),
    ("single", "name", None, "name", "missing"),
    ("single", "searcher.max_length", {"batches": 9}, "searcher.max_length", "deprecated"),
    ("single", "min_checkpoint_period", {"batches": 9}, "min_checkpoint_period", "checkpoint_per"),
    ("single", "resources.agent_label", "x", "resources.agent_label", "use resource_pool"),
    ("single", "environment", {"image": {"gpu": "x"}}, "environment.image.gpu", "use cuda"),
    ("single", "searcher.name", "adaptive", "searcher.name", "did you mean 'adaptive_asha'?"),
    ("single", "searcher.metric", "f2", "searcher.metric", "validation gives no 'f2'"),
    ("single", "searcher.smaller_is_better", True, "searcher.smaller_is_better", "keep the worst"),
    ("single", "log_policies[0].action", {"type": "cancel"}, "log_policies[0].action.type", "one"),
    ("single", "log_policies", [{"name": "a"}, {"name": "a"}], "log_policies", "twice"),
    ("single", "log_policies[0].pattern", "(?!x)y", "log_policies[0].pattern", "Go's regexp"),
    ("single", "log_policies[0].pattern", ".*", "log_policies[0].pattern", "every line"),
    ("single", "resources.shm_size", "8GiB", "resources.shm_size", "whole number of bytes"),
    ("single", "resources.slots", 1, "resources.slots", "slots_per_trial"),
    ("single", "entrypoint", "", "entrypoint", "trains nothing"),
    ("single", "entrypoint", ["python3 train.py"], "entrypoint", "one program"),
    ("single", "preemption_timeout", -1, "preemption_timeout", "less than 0"),
    ("single", "workspace", "nlp", "project", "set both or neither"),
    ("distributed8", "entrypoint", "python3 train.py", "entrypoint", "need a launcher"),
    ("distributed8", "resources.max_slots", 4, "resources", "may never be scheduled"),
    ("distributed64", "resources.is_single_node", True, "resources.is_single_node", "of 8"),
    ("lr_search", "searcher.divisor", 1, "searcher.divisor", "not more than 1"),
    ("single", "bind_mounts", [{"host_path": "<<where>>", "container_path": "x"}],
     "bind_mounts[0].host_path", "placeholder <<where>>"),
    ("single", "hyperparameters.optimizer", {"type": "categorical", "vals": ["radam"]},
     "hyperparameters.optimizer", "searcher.name single"),
    ("distributed8", "resources.slots_per_trial", 60, "resources.slots_per_trial", "56 or 64"),
    ("distributed8", "resources.slots_per_trial", 96, "resources.slots_per_trial", "at most"),
    ("distributed8", "resources.resource_pool", "aws-spot-p3",
     "resources.resource_pool", f"did you mean '{V100_SPOT}'"),
    ("distributed8", "resources.resource_pool", "aux-cpu", "resources.resource_pool", "no slots"),
    ("distributed8", "hyperparameters.global_batch_size", 50, "hyperparameters.global_batch_size",
     "use 56"),
    ("distributed8", "hyperparameters.precision", "bf16", "hyperparameters.precision", "no bf16"),
    ("distributed8", "hyperparameters.max_tokens_per_forward", 4096,
     "hyperparameters.max_tokens_per_forward", "do not fit 16 GB of a V100"),
    ("distributed8", "hyperparameters.model", "albert-xxlarge-v2 ", "", None),
    ("distributed64", "hyperparameters.checkpoint_period", 1000,
     "hyperparameters.checkpoint_period", "46 minutes of 64 slots"),
    ("distributed64", "hyperparameters.checkpoint_period", None,
     "hyperparameters.checkpoint_period", "516 steps (an epoch, the default)"),
    ("lm_125m", "resources.resource_pool", V100_SPOT, "hyperparameters.spot_notice", "unread"),
    ("lm_125m", "resources.slots_per_trial", 64, "", None),  # 480 windows on 64 data ranks
    ("lm_125m", "data.document", "x", "data.document", "did you mean 'documents'?"),
    ("distributed64", "hyperparameters.spot_notice", False,
     "hyperparameters.spot_notice", "unread"),
    ("lr_search", "searcher.max_time", 2000, "searcher.max_time", "max_steps = 1024"),
    ("lr_search", "searcher.time_metric", "epochs", "searcher.time_metric", "batches"),
    ("lr_search", "searcher.max_trials", None, "searcher.max_trials", "missing"),
    ("lr_search", "hyperparameters.lr_scale.maxval", 0.5, "hyperparameters.lr_scale",
     "not below maxval"),
    ("lr_search", "hyperparameters.global_batch_size.vals", [48, 100],
     "hyperparameters.global_batch_size", "100 windows cannot be dealt evenly to 8"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "key", "value", "where", "words"), JOB_MISTAKES)
def test_mistake_in_an_experiment_is_named(
    name: str, key: str, value: Any, where: str, words: str | None, tmp_path: pathlib.Path
) -> None:
    config = experiment(f"{name}.yaml")
    put(config, key, value)
    found = findings(tmp_path, config, master())
    if words is None:  # a hub name that is not known: nothing is downloaded, nothing claimed
        assert found == []
        return
    named = [finding for finding in found if finding.key == where]
    assert len(named) == 1 and words in named[0].problem, found
    assert named[0].file.endswith("job.yaml")
    assert str(named[0]).count("\n") == 0


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
