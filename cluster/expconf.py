"""The keys of an experiment config, version 0, as Determined 0.38.1's master takes them."""

import re
from collections.abc import Iterator
from typing import Any

from cluster import parts, schema
from cluster.ranges import RANGES, check_hyperparameters
from cluster.resources import ENVIRONMENT, RESOURCES
from cluster.schema import (
    FLAG,
    TEXT,
    WHOLE,
    Either,
    Finding,
    Map,
    Seq,
    Union_,
    Value,
    keys,
)
from detalbert.settings.experiment import UNREAD

__all__ = ["EXPERIMENT", "RANGES", "check_experiment", "is_ours"]


_LENGTH = Map(
    keys(schema.COUNT, "batches records epochs"),
    rule=lambda length: (
        None
        if len(length) == len(parts.given(length)) == 1
        else "give exactly one of batches, records and epochs"
    ),
)
_MAX_LENGTH = Either(
    {
        int: schema.COUNT,
        dict: Map(keys(schema.POSITIVE, "batches records epochs"), rule=_LENGTH.rule),
    }
)
_SEARCH_COMMON: dict[str, Any] = {
    **keys(TEXT, "name metric source_checkpoint_uuid"),
    "smaller_is_better": FLAG,
    "source_trial_id": WHOLE,
}
_CONCURRENT = {"max_concurrent_trials": schema.COUNT}
_LENGTHS = {"max_length": _MAX_LENGTH}
_HALVING = {
    **keys(schema.POSITIVE, "max_trials max_time"),  # the master takes a max_time below 1, wrapped
    "time_metric": TEXT,
    "divisor": Value((int, float), rule=schema.above(1)),
    "stop_once": FLAG,
    **_CONCURRENT,
    **_LENGTHS,
}
SEARCHERS: dict[str, dict[str, Any]] = {
    "single": _LENGTHS,
    "random": {"max_trials": schema.POSITIVE, **_CONCURRENT, **_LENGTHS},
    "grid": {**_CONCURRENT, **_LENGTHS},
    "adaptive_asha": {
        **_HALVING,
        "max_rungs": schema.POSITIVE,
        "mode": Value((str,), choices=("aggressive", "standard", "conservative")),
        "bracket_rungs": Seq(WHOLE),
    },
    "async_halving": {
        **_HALVING,
        "num_rungs": schema.POSITIVE,
        "max_length": _MAX_LENGTH.forms[dict],
    },
}
_REQUIRED = {
    "random": ("max_trials",),
    "adaptive_asha": ("max_trials", "time_metric", "max_time"),
    "async_halving": ("max_trials", "time_metric", "max_time", "num_rungs"),
}
_OLD_SEARCH = {
    "max_length": "a trainer script sets its own length; leave it out "
    "(adaptive_asha: time_metric and max_time)",
    "stop_once": "adaptive_asha always stops trials now; leave it out",
}
SEARCHER = Union_(
    "name",
    {
        name: Map({**_SEARCH_COMMON, **own}, ("metric", *_REQUIRED.get(name, ())), _OLD_SEARCH)
        for name, own in SEARCHERS.items()
    },
)

_PROFILING = Map(
    {
        **keys(FLAG, "enabled sync_timings"),
        **keys(schema.COUNT, "begin_on_batch end_after_batch"),
    },
    rule=lambda profiling: (
        "begin_on_batch is after end_after_batch; change one"
        if _number(profiling.get("begin_on_batch"), 0) > _number(profiling.get("end_after_batch"))
        else None
    ),
)


def _number(value: Any, default: float = float("inf")) -> float:
    return value if isinstance(value, (int, float)) else default


def _whole_texts(names: str) -> Map:
    return Map(keys(TEXT, names), tuple(names.split()))


INTEGRATIONS = Map(
    {
        "pachyderm": Map(
            {
                "pachd": Map({"host": TEXT, "port": WHOLE}, ("host", "port")),
                "proxy": Map(
                    {**keys(TEXT, "scheme host"), "port": WHOLE}, ("scheme", "host", "port")
                ),
                "dataset": _whole_texts("project repo commit branch token"),
            },
            ("pachd", "proxy", "dataset"),
        ),
        "webhooks": Map(
            {"webhook_id": Seq(WHOLE), "webhook_name": schema.TEXTS, "exclude": FLAG},
        ),
    }
)
_OPTIMIZATIONS = {
    "aggregation_frequency": schema.POSITIVE,
    **keys(FLAG, "auto_tune_tensor_fusion average_aggregated_gradients"),
    **keys(FLAG, "average_training_metrics gradient_compression"),
    "grad_updates_size_file": TEXT,
    "mixed_precision": Value((str,), choices=("O0", "O1", "O2", "O3")),
    **keys(schema.COUNT, "tensor_fusion_cycle_time tensor_fusion_threshold"),
}
_OLD_STORAGE = Union_(
    "type",
    {
        name: Map(keys(TEXT, f"type {parts.STORAGES[name][0]}"), (parts.STORAGES[name][1],))
        for name in ("shared_fs", "s3", "gcs")
    },
)
_RETENTION = {"log_retention_days": Value((int,), minimum=-1, maximum=32767)}
EXPERIMENT = Map(
    {
        **keys(TEXT, "description name project workspace"),
        **keys(schema.ANY_MAP, "data data_layer hyperparameters"),
        **keys(FLAG, "debug perform_initial_validation"),
        "bind_mounts": parts.BIND_MOUNTS,
        "checkpoint_policy": Value((str,), choices=("best", "all", "none")),
        "checkpoint_storage": parts.CHECKPOINT_STORAGE,
        "entrypoint": Either({str: TEXT, list: schema.TEXTS}),
        "environment": ENVIRONMENT,
        "integrations": INTEGRATIONS,
        "internal": schema.NOTHING,
        "labels": schema.TEXTS,
        "log_policies": parts.LOG_POLICIES,
        "max_restarts": schema.COUNT,
        **keys(_LENGTH, "min_checkpoint_period min_validation_period"),
        "optimizations": Map(_OPTIMIZATIONS),
        "pbs": parts.hpc("pbsbatch_args"),
        "preemption_timeout": schema.COUNT,
        "profiling": _PROFILING,
        "records_per_epoch": WHOLE,
        "reproducibility": Map(
            {"experiment_seed": Value((int,), minimum=0, maximum=2**32 - 1)},
        ),
        "resources": RESOURCES,
        "retention_policy": Map(_RETENTION, tuple(_RETENTION)),
        "scheduling_unit": schema.POSITIVE,
        "searcher": SEARCHER,
        "security": Map({"kerberos": _whole_texts("config_file")}),
        "slurm": parts.hpc("sbatch_args", "gpu_type"),
        "tensorboard_storage": _OLD_STORAGE,
    },
    ("entrypoint", "searcher"),
    deprecated={
        "data_layer": "removed in 0.19.10; leave it out",
        **keys("no longer read; leave it out", "internal security tensorboard_storage"),
        **{key: f"a trainer script does not get it; use {use}" for key, use in UNREAD.items()},
    },
)


def check_experiment(file: str, config: dict[str, Any]) -> Iterator[Finding]:
    """Keys, types and limits of an experiment config, and what a run would not survive."""
    yield from schema.check(file, "", config, EXPERIMENT)
    yield from check_hyperparameters(file, config, is_ours(config))
    if (config.get("workspace") or "") == "" != (config.get("project") or ""):
        yield Finding(file, "workspace", "missing, and project is there; set both or neither")
    elif (config.get("project") or "") == "" != (config.get("workspace") or ""):
        yield Finding(file, "project", "missing, and workspace is there; set both or neither")
    yield from _check_entrypoint(file, config)
    if not config.get("name"):
        yield Finding(file, "name", "missing; the master makes one up", warning=True)


def _check_entrypoint(file: str, config: dict[str, Any]) -> Iterator[Finding]:
    entrypoint = config.get("entrypoint")
    if isinstance(entrypoint, list) and all(isinstance(word, str) for word in entrypoint):
        if entrypoint and re.search(r"\s", entrypoint[0].strip()):
            problem = f"{entrypoint[0]!r} is run as the name of one program; one word an item"
            yield Finding(file, "entrypoint", problem)
        entrypoint = " ".join(entrypoint)
    if not isinstance(entrypoint, str):
        return
    if not entrypoint.strip():
        problem = "empty: the trial completes and trains nothing; name train.py"
        yield Finding(file, "entrypoint", problem)
    answers = runs(config, "predict.py")
    if answers:
        for flag in ("--model", "--data"):
            if flag not in entrypoint:
                yield Finding(file, "entrypoint", f"predict.py without {flag}; say which")
    slots = schema.mapping(config.get("resources")).get("slots_per_trial", 1)
    alone = (answers or runs(config, "train.py")) and "determined.launch" not in entrypoint
    if alone and isinstance(slots, int) and slots > 1:
        problem = f"{slots} slots need a launcher: python3 -m determined.launch.torch_distributed"
        yield Finding(file, "entrypoint", f"{problem} before the rest")


def is_ours(config: dict[str, Any]) -> bool:
    """Whether the experiment is one of this package's: other people have a train.py too."""
    data, hparams = (schema.mapping(config.get(key)) for key in ("data", "hyperparameters"))
    ours = {"train", "text", "documents", "shards"}
    told = ours & set(data) or {"model", "model_config"} & set(hparams)
    return runs(config, "train.py") and bool(told)


def runs(config: dict[str, Any], script: str) -> bool:
    """Whether the entrypoint runs a file of this name."""
    entrypoint = config.get("entrypoint")
    words = entrypoint if isinstance(entrypoint, list) else str(entrypoint).split()
    return any(str(word).rsplit("/", 1)[-1] == script for word in words)
