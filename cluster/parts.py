"""Rules shared by experiment and master configs in Determined 0.38.1; keys.yaml names them.

They cover checkpoint storage, mounts, devices, log policies, images and their variables.
"""

import posixpath
import re
from typing import Any

from cluster import gotext, schema
from cluster.schema import Rule

KEPT = ("save_experiment_best", "save_trial_best", "save_trial_latest")


def storage_problem(value: dict[str, Any]) -> str | None:
    """Say which storage keys, each valid by itself, contradict each other or keep nothing."""
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


def container_problem(path: str) -> str | None:
    """Say why `path` is not valid as a mount's container path."""
    return "'.' is not taken" if path == "." else None


def targets_problem(mounts: list[Any]) -> str | None:
    """Say which container path two mounts or devices share, which Docker rejects."""
    paths: list[Any] = [mount.get("container_path") for mount in schema.mappings(mounts)]
    paths = [posixpath.normpath(path) for path in paths if isinstance(path, str)]
    twice = sorted({path for path in paths if paths.count(path) > 1})
    return f"two go to container_path {twice[0]!r}; change one" if twice else None


def device_problem(text: str) -> str | None:
    """Say why `text` is not a valid device."""
    if re.match(r"/[^:]*:/[^:]*(:[rwm]*)?$", text):
        return None
    return f"{text!r}: write it as /dev/HOST:/dev/CONTAINER or with :rwm after it"


def pattern_problem(pattern: str) -> str | None:
    """Say that a log policy's pattern does not compile in Go, or matches every line."""
    fault = gotext.regexp_problem(pattern)
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


def policy_problem(policy: dict[str, Any]) -> str | None:
    """Say what a policy lacks: a name (alone, it removes a default one) or the old form's keys."""
    named = policy.get("name") is not None or {"pattern", "action"} <= given(policy)
    return None if named else "give it a name and a pattern"


def given(value: dict[str, Any]) -> set[str]:
    """Return the keys whose values are not null."""
    return {name for name, inner in value.items() if inner is not None}


def names_problem(policies: list[Any]) -> str | None:
    """Say which name two policies share."""
    names = [policy.get("name") for policy in schema.mappings(policies)]
    for name in names:
        if isinstance(name, str) and names.count(name) > 1:
            return f"{name!r} is there twice; the master refuses that"
    return None


def image_problem(name: str) -> str | None:
    """Say that `name` is empty, so not a valid image."""
    if not name.strip():
        return "empty, and Docker starts no container without a name; name an image"
    return None


_OURS = {  # Determined sets these itself, and refuses a job that does
    "sbatch_args": "--ntasks-per-node= --gpus= -G --nodes= -N --ntasks= -n --chdir= -D --error= -e "
    "--output= -o --partition= -p --no-requeue --requeue --gres=gpu",
    "pbsbatch_args": "--version -- -c -C -e -G -h -I -j -J -k -o -q -r -R -S -u -v -V -W -X -z",
}


def forbidden(arguments: str) -> Rule:
    """Return the rule that rejects items of `arguments` which Determined sets itself."""

    def rule(text: str) -> str | None:
        starts = [text.strip()] + (text.split() if arguments.startswith("pbs") else [])
        if any(start.startswith(tuple(_OURS[arguments].split())) for start in starts):
            return f"{text!r} is Determined's to set; leave it out"
        return None

    return rule
