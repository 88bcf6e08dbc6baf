"""What experiment and master configs have in common, as Determined 0.38.1 takes it.

Checkpoint storage, mounts, devices, log policies, images and their variables.
"""

import posixpath
import re
from typing import Any

from cluster import goregexp, gotext, schema
from cluster.schema import FLAG, TEXT, Either, Form, Map, Rule, Seq, Spec, Union_, Value, keys

_PATHS = "host_path storage_path propagation container_path checkpoint_path tensorboard_path"
STORAGES = {
    "shared_fs": (_PATHS, "host_path"),
    "directory": ("container_path", "container_path"),
    "s3": ("bucket access_key secret_key endpoint_url prefix", "bucket"),
    "gcs": ("bucket prefix", "bucket"),
    "azure": ("container connection_string account_url credential", "container"),
}
KEPT = ("save_experiment_best", "save_trial_best", "save_trial_latest")


def _storage_problem(value: dict[str, Any]) -> str | None:
    """What no run survives, though every key of the storage is right by itself."""
    has = {name for name, inner in value.items() if inner is not None}
    inner, outer = value.get("storage_path"), value.get("host_path")
    if isinstance(inner, str) and isinstance(outer, str) and gotext.outside(inner, outer):
        return f"storage_path {inner!r} is not inside host_path"
    if len(has & {"access_key", "secret_key"}) == 1:
        return "access_key and secret_key go together; give both or neither"
    if value.get("type") == "azure":
        if len(has & {"connection_string", "account_url"}) != 1:
            return "give exactly one of connection_string and account_url"
        if {"connection_string", "credential"} <= has:
            return "connection_string has its own credential; leave credential out"
    if all(value.get(name) == 0 for name in KEPT):
        return "every checkpoint is deleted at the end of an experiment; save at least one kind"
    return None


def _storage(name: str) -> Map:
    texts, required = STORAGES[name]
    specs: dict[str, Any] = {**keys(TEXT, f"type {texts}"), **keys(schema.COUNT, " ".join(KEPT))}
    if "prefix" in specs:
        specs["prefix"] = Value((str,), rule=gotext.prefix_problem)
    if "propagation" in specs:
        specs["propagation"] = PROPAGATION
    return Map(specs, (required,))


# Docker refuses any other, when the container starts.
PROPAGATION = Value(
    (str,), choices=("rprivate", "private", "rshared", "shared", "rslave", "slave", "")
)
CHECKPOINT_STORAGE = Union_(
    "type",
    {name: _storage(name) for name in STORAGES},
    required=False,  # the master's own storage is merged in
    bare=Map({"type": TEXT, **keys(schema.COUNT, " ".join(KEPT))}),
    rule=_storage_problem,
)

_MOUNT = {
    "host_path": Value((str,), rule=gotext.absolute_problem),
    "container_path": Value((str,), rule=lambda path: "'.' is not taken" if path == "." else None),
    "propagation": PROPAGATION,
    "read_only": FLAG,
}


def _targets_problem(mounts: list[Any]) -> str | None:
    """Docker takes no two mounts, or devices, at one place."""
    paths: list[Any] = [mount.get("container_path") for mount in schema.mappings(mounts)]
    paths = [posixpath.normpath(path) for path in paths if isinstance(path, str)]
    twice = sorted({path for path in paths if paths.count(path) > 1})
    return f"two go to container_path {twice[0]!r}; change one" if twice else None


BIND_MOUNTS = Seq(Map(_MOUNT, ("host_path", "container_path")), rule=_targets_problem)

_DEVICE = Map(keys(TEXT, "host_path container_path mode"), ("host_path", "container_path"))


def _device_problem(text: str) -> str | None:
    if re.match(r"/[^:]*:/[^:]*(:[rwm]*)?$", text):
        return None
    return f"{text!r}: write it as /dev/HOST:/dev/CONTAINER or with :rwm after it"


DEVICES = Seq(Either({str: Value((str,), rule=_device_problem), dict: _DEVICE}))


def pattern_problem(pattern: str) -> str | None:
    """What a log policy's pattern does that nobody wants."""
    fault = goregexp.problem(pattern)
    if fault:
        return (
            f"Go's regexp does not compile it, and the master then watches for none of the "
            f"policies after it: {fault}"
        )
    try:
        every_line = all(re.search(pattern, line) for line in ("", "q", "a line 0."))
    except re.error:
        return None  # Go's alone
    return "matches every line, the first one too; narrow it" if every_line else None


ACTIONS = ("cancel_retries", "exclude_node")
_ACTION = Value((str,), choices=ACTIONS)
POLICY = Map(
    {
        "name": TEXT,
        "pattern": Value((str,), rule=pattern_problem),
        "action": Either({str: _ACTION, dict: Map({"type": _ACTION}, ("type",))}),
    },
    rule=lambda policy: None if _is_policy(policy) else "give it a name and a pattern",
)


def _is_policy(policy: dict[str, Any]) -> bool:
    """A name alone takes a default policy away; without a name, it is the form of before 0.37."""
    return bool(policy.get("name") is not None or {"pattern", "action"} <= given(policy))


def given(value: dict[str, Any]) -> set[str]:
    """The keys that are not null."""
    return {name for name, inner in value.items() if inner is not None}


def _names_problem(policies: list[Any]) -> str | None:
    names = [policy.get("name") for policy in schema.mappings(policies)]
    for name in names:
        if isinstance(name, str) and names.count(name) > 1:
            return f"{name!r} is there twice; the master refuses that"
    return None


LOG_POLICIES = Seq(POLICY, rule=_names_problem)

NO_GPU = {"gpu": "use cuda"}
IMAGE_NAME = Value(
    (str,),
    rule=lambda name: (
        "empty, and Docker starts no container without a name; name an image"
        if not name.strip()
        else None
    ),
)


def by_device(form: type, spec: Spec, whole: Form) -> Either:
    """`whole`, of type `form`, or `spec` for each kind of device. `gpu` is cuda's old name."""
    return Either({form: whole, dict: Map(keys(spec, "cpu cuda rocm gpu"), deprecated=NO_GPU)})


IMAGE = by_device(str, IMAGE_NAME, IMAGE_NAME)
VARIABLES = by_device(list, schema.TEXTS, schema.TEXTS)
REGISTRY_AUTH = Map(
    keys(TEXT, "username password auth email serveraddress identitytoken registrytoken")
)


def hpc(arguments: str, texts: str = "") -> Map:
    """`slurm:` or `pbs:`, whose list of arguments is called `arguments`."""
    specs = {"slots_per_node": schema.POSITIVE, **keys(TEXT, texts)}
    return Map({**specs, arguments: Seq(Value((str,), rule=_forbidden(arguments)))})


_OURS = {  # Determined sets these itself, and refuses a job that does
    "sbatch_args": "--ntasks-per-node= --gpus= -G --nodes= -N --ntasks= -n --chdir= -D --error= -e "
    "--output= -o --partition= -p --no-requeue --requeue --gres=gpu",
    "pbsbatch_args": "--version -- -c -C -e -G -h -I -j -J -k -o -q -r -R -S -u -v -V -W -X -z",
}


def _forbidden(arguments: str) -> Rule:
    def rule(text: str) -> str | None:
        starts = [text.strip()] + (text.split() if arguments.startswith("pbs") else [])
        if any(start.startswith(tuple(_OURS[arguments].split())) for start in starts):
            return f"{text!r} is Determined's to set; leave it out"
        return None

    return rule
