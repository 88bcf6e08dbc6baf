"""The keys of an experiment config, version 0, as Determined 0.38.1's master takes them."""

from collections.abc import Iterator
from typing import Any

from cluster import schema
from cluster.schema import FLAG, NUMBER, TEXT, WHOLE, Finding, Map, Seq, Union_, Value, keys
from detalbert.settings.experiment import UNREAD

STORAGES = {
    "shared_fs": "host_path storage_path propagation container_path checkpoint_path "
    "tensorboard_path",
    "directory": "container_path",
    "s3": "bucket access_key secret_key endpoint_url prefix",
    "gcs": "bucket prefix",
    "azure": "container connection_string account_url credential",
}
_KEPT = keys(schema.COUNT, "save_experiment_best save_trial_best save_trial_latest")
CHECKPOINT_STORAGE = Union_(
    "type",
    {name: Map({**keys(TEXT, f"type {names}"), **_KEPT}) for name, names in STORAGES.items()},
    required=False,  # the master's own storage is merged in
)

_SEARCH_COMMON: dict[str, Any] = {
    **keys(TEXT, "name metric source_checkpoint_uuid"),
    "smaller_is_better": FLAG,
    "source_trial_id": WHOLE,
}
_CONCURRENT = {"max_concurrent_trials": schema.COUNT}
SEARCHERS = {
    "single": {},
    "random": {"max_trials": schema.POSITIVE, **_CONCURRENT},
    "grid": _CONCURRENT,
    "adaptive_asha": {
        **keys(schema.POSITIVE, "max_trials max_time max_rungs"),
        "time_metric": Value((str,), choices=("batches", "epochs"), hint="this trial: batches"),
        "mode": Value((str,), choices=("aggressive", "standard", "conservative")),
        "divisor": NUMBER,
        "bracket_rungs": Seq(WHOLE),
        **_CONCURRENT,
    },
}
_REQUIRED = {
    "random": ("max_trials",),
    "adaptive_asha": ("max_trials", "time_metric", "max_time"),
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

_PORT = {"proxy_port": NUMBER, **keys(FLAG, "proxy_tcp unauthenticated default_service_id")}
ENVIRONMENT = Map(
    {
        "image": Value((str, dict)),
        "environment_variables": Value((list, dict)),
        "proxy_ports": Seq(Map(_PORT, ("proxy_port",))),
        "force_pull_image": FLAG,
        **keys(schema.ANY_MAP, "ports registry_auth pod_spec"),
        **keys(schema.TEXTS, "add_capabilities drop_capabilities"),
    }
)
RESOURCES = Map(
    {
        "devices": Seq(Value((str, dict))),
        "is_single_node": FLAG,
        **keys(WHOLE, "max_slots slots"),
        "priority": schema.PRIORITY,
        "resource_pool": TEXT,
        "shm_size": Value((int, str)),
        "slots_per_trial": schema.COUNT,
        "weight": NUMBER,
    },
    deprecated={
        "agent_label": "resource pools took its place; use resource_pool",
        "native_parallel": "it does nothing; processes come from determined.launch",
    },
)
_ACTIONS = ("cancel_retries", "exclude_node")
_ACTION = Value((str,), choices=_ACTIONS, hint="0.38 takes it as text")
LOG_POLICIES = Seq(Map({**keys(TEXT, "name pattern"), "action": _ACTION}, ("name",)))
_MOUNT = {**keys(TEXT, "host_path container_path propagation"), "read_only": FLAG}
BIND_MOUNTS = Seq(Map(_MOUNT, ("host_path", "container_path")))
_PROFILING = {
    **keys(FLAG, "enabled sync_timings"),
    **keys(schema.COUNT, "begin_on_batch end_after_batch"),
}
_RETENTION = {"log_retention_days": Value((int,), minimum=-1, maximum=32767)}
EXPERIMENT = Map(
    {
        **keys(TEXT, "description name project workspace"),
        **keys(schema.ANY_MAP, "data hyperparameters integrations pbs slurm"),
        **keys(FLAG, "debug perform_initial_validation"),
        "bind_mounts": BIND_MOUNTS,
        "checkpoint_policy": Value((str,), choices=("best", "all", "none")),
        "checkpoint_storage": CHECKPOINT_STORAGE,
        "entrypoint": Value((str, list)),
        "environment": ENVIRONMENT,
        "labels": schema.TEXTS,
        "log_policies": LOG_POLICIES,
        "max_restarts": schema.COUNT,
        "preemption_timeout": WHOLE,
        "profiling": Map(_PROFILING),
        "reproducibility": Map({"experiment_seed": schema.COUNT}),
        "resources": RESOURCES,
        "retention_policy": Map(_RETENTION, tuple(_RETENTION)),
        "searcher": SEARCHER,
    },
    ("name", "entrypoint", "hyperparameters", "data", "searcher"),
    deprecated={
        "data_layer": "removed in 0.19.10; leave it out",
        **keys("no longer read; leave it out", "internal security tensorboard_storage"),
        **{key: f"a trainer script does not get it; use {use}" for key, use in UNREAD.items()},
    },
)

_COUNTED = {"type": TEXT, "count": schema.POSITIVE}
# A search range, by `type`; every other mapping is a nested value.
RANGES = {
    "const": Map({"type": TEXT, "val": schema.ANY}, ("val",)),
    "categorical": Map({"type": TEXT, "vals": Seq(schema.ANY)}, ("vals",)),
    "int": Map({**_COUNTED, **keys(WHOLE, "minval maxval")}, ("minval", "maxval")),
    "double": Map({**_COUNTED, **keys(NUMBER, "minval maxval")}, ("minval", "maxval")),
    "log": Map({**_COUNTED, **keys(NUMBER, "base minval maxval")}, ("base", "minval", "maxval")),
}


def check_experiment(file: str, config: dict[str, Any]) -> Iterator[Finding]:
    """Keys, types and limits of an experiment config, what `hyperparameters` hold left out."""
    yield from schema.check(file, "", config, EXPERIMENT)
    environment = schema.mapping(config.get("environment"))
    for key, spec in (("image", TEXT), ("environment_variables", schema.TEXTS)):
        if isinstance(environment.get(key), dict):
            by_device = Map(keys(spec, "cpu cuda rocm"), deprecated={"gpu": "use cuda"})
            yield from schema.check(file, f"environment.{key}", environment[key], by_device)
    names = [policy.get("name") for policy in schema.mappings(config.get("log_policies"))]
    for name in {str(name) for name in names if name and names.count(name) > 1}:
        yield Finding(file, "log_policies", f"{name!r} is there twice; the master refuses that")
