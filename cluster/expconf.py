"""The keys of an experiment config, version 0, as Determined 0.38.1's master takes them."""

from collections.abc import Iterator
from typing import Any

from cluster.schema import (
    ANY,
    ANY_MAP,
    COUNT,
    FLAG,
    NUMBER,
    POSITIVE,
    TEXT,
    TEXTS,
    WHOLE,
    Finding,
    Map,
    Seq,
    Union_,
    Value,
    check,
    mapping,
)
from detalbert.settings.experiment import UNREAD

_SAVE: dict[str, Any] = {
    "save_experiment_best": COUNT,
    "save_trial_best": COUNT,
    "save_trial_latest": COUNT,
}
STORAGES = {
    "shared_fs": {
        "host_path": TEXT,
        "storage_path": TEXT,
        "propagation": TEXT,
        "container_path": TEXT,
        "checkpoint_path": TEXT,
        "tensorboard_path": TEXT,
    },
    "directory": {"container_path": TEXT},
    "s3": {
        "bucket": TEXT,
        "access_key": TEXT,
        "secret_key": TEXT,
        "endpoint_url": TEXT,
        "prefix": TEXT,
    },
    "gcs": {"bucket": TEXT, "prefix": TEXT},
    "azure": {
        "container": TEXT,
        "connection_string": TEXT,
        "account_url": TEXT,
        "credential": TEXT,
    },
}
CHECKPOINT_STORAGE = Union_(
    "type",
    {name: Map({"type": TEXT, **keys, **_SAVE}) for name, keys in STORAGES.items()},
    required=False,  # the master's own storage is merged in
)

_SEARCH_COMMON: dict[str, Any] = {
    "name": TEXT,
    "metric": TEXT,
    "smaller_is_better": FLAG,
    "source_trial_id": WHOLE,
    "source_checkpoint_uuid": TEXT,
}
_CONCURRENT = {"max_concurrent_trials": COUNT}
SEARCHERS = {
    "single": {},
    "random": {"max_trials": POSITIVE, **_CONCURRENT},
    "grid": _CONCURRENT,
    "adaptive_asha": {
        "max_trials": POSITIVE,
        "time_metric": Value((str,), choices=("batches", "epochs"), hint="this trial: batches"),
        "max_time": POSITIVE,
        "mode": Value((str,), choices=("aggressive", "standard", "conservative")),
        "divisor": NUMBER,
        "max_rungs": POSITIVE,
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
        name: Map({**_SEARCH_COMMON, **keys}, ("metric", *_REQUIRED.get(name, ())), _OLD_SEARCH)
        for name, keys in SEARCHERS.items()
    },
)

_BY_DEVICE = {"cpu": TEXTS, "cuda": TEXTS, "rocm": TEXTS}
ENVIRONMENT = Map(
    {
        "image": Value((str, dict)),
        "environment_variables": Value((list, dict)),
        "proxy_ports": Seq(
            Map(
                {
                    "proxy_port": NUMBER,
                    "proxy_tcp": FLAG,
                    "unauthenticated": FLAG,
                    "default_service_id": FLAG,
                },
                ("proxy_port",),
            )
        ),
        "ports": ANY_MAP,
        "force_pull_image": FLAG,
        "registry_auth": ANY_MAP,
        "add_capabilities": TEXTS,
        "drop_capabilities": TEXTS,
        "pod_spec": ANY_MAP,
    }
)
RESOURCES = Map(
    {
        "devices": Seq(Value((str, dict))),
        "is_single_node": FLAG,
        "max_slots": WHOLE,
        "priority": Value((int,), minimum=1, maximum=99),
        "resource_pool": TEXT,
        "shm_size": Value((int, str)),
        "slots": WHOLE,
        "slots_per_trial": COUNT,
        "weight": NUMBER,
    },
    deprecated={
        "agent_label": "resource pools took its place; use resource_pool",
        "native_parallel": "it does nothing; processes come from determined.launch",
    },
)
LOG_POLICIES = Seq(
    Map(
        {
            "name": TEXT,
            "pattern": TEXT,
            "action": Value(
                (str,), choices=("cancel_retries", "exclude_node"), hint="0.38 takes it as text"
            ),
        },
        ("name",),
    )
)
BIND_MOUNTS = Seq(
    Map(
        {"host_path": TEXT, "container_path": TEXT, "read_only": FLAG, "propagation": TEXT},
        ("host_path", "container_path"),
    )
)
EXPERIMENT = Map(
    {
        "bind_mounts": BIND_MOUNTS,
        "checkpoint_policy": Value((str,), choices=("best", "all", "none")),
        "checkpoint_storage": CHECKPOINT_STORAGE,
        "data": ANY_MAP,
        "debug": FLAG,
        "description": TEXT,
        "entrypoint": Value((str, list)),
        "environment": ENVIRONMENT,
        "hyperparameters": ANY_MAP,
        "integrations": ANY_MAP,
        "labels": TEXTS,
        "log_policies": LOG_POLICIES,
        "max_restarts": COUNT,
        "name": TEXT,
        "pbs": ANY_MAP,
        "perform_initial_validation": FLAG,
        "preemption_timeout": WHOLE,
        "profiling": Map(
            {
                "enabled": FLAG,
                "begin_on_batch": COUNT,
                "end_after_batch": COUNT,
                "sync_timings": FLAG,
            }
        ),
        "project": TEXT,
        "reproducibility": Map({"experiment_seed": COUNT}),
        "resources": RESOURCES,
        "retention_policy": Map(
            {"log_retention_days": Value((int,), minimum=-1, maximum=32767)},
            ("log_retention_days",),
        ),
        "searcher": SEARCHER,
        "slurm": ANY_MAP,
        "workspace": TEXT,
    },
    ("name", "entrypoint", "hyperparameters", "data", "searcher"),
    deprecated={
        "data_layer": "removed in 0.19.10; leave it out",
        "internal": "no longer read; leave it out",
        "security": "no longer read; leave it out",
        "tensorboard_storage": "no longer read; leave it out",
        **{key: f"a trainer script does not get it; use {use}" for key, use in UNREAD.items()},
    },
)

# A search range, by `type`; every other mapping is a nested value.
RANGES = {
    "const": Map({"type": TEXT, "val": ANY}, ("val",)),
    "categorical": Map({"type": TEXT, "vals": Seq(ANY)}, ("vals",)),
    "int": Map(
        {"type": TEXT, "minval": WHOLE, "maxval": WHOLE, "count": POSITIVE}, ("minval", "maxval")
    ),
    "double": Map(
        {"type": TEXT, "minval": NUMBER, "maxval": NUMBER, "count": POSITIVE}, ("minval", "maxval")
    ),
    "log": Map(
        {"type": TEXT, "base": NUMBER, "minval": NUMBER, "maxval": NUMBER, "count": POSITIVE},
        ("base", "minval", "maxval"),
    ),
}


def check_experiment(file: str, config: dict[str, Any]) -> Iterator[Finding]:
    """Keys, types and limits of an experiment config, what `hyperparameters` hold left out."""
    yield from check(file, "", config, EXPERIMENT)
    environment = mapping(config.get("environment"))
    image = Map({"cpu": TEXT, "cuda": TEXT, "rocm": TEXT}, deprecated={"gpu": "use cuda"})
    variables = Map(_BY_DEVICE, deprecated={"gpu": "use cuda"})
    for key, spec in (("image", image), ("environment_variables", variables)):
        if isinstance(environment.get(key), dict):
            yield from check(file, f"environment.{key}", environment[key], spec)
    names = [policy.get("name") for policy in _mappings(config.get("log_policies"))]
    for name in {str(name) for name in names if name and names.count(name) > 1}:
        yield Finding(file, "log_policies", f"{name!r} is there twice; the master refuses that")


def _mappings(value: Any) -> Iterator[dict[str, Any]]:
    return (item for item in (value if isinstance(value, list) else ()) if isinstance(item, dict))
