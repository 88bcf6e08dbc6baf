"""Names of models and data sets: a local folder, or NAME or NAME@REVISION of a hub.

A revision is a branch, a tag or a commit. It is resolved once per run.
"""

import contextlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import LocalEntryNotFoundError, OfflineModeIsEnabled

from detalbert.errors import Unavailable, UserError, as_user_error, first_line

# In a checkpoint, beside Determined's files:
PRETRAINED = "pretrained"  # the model's config and the tokenizer, in the library's own files
STATE_DICT = "state_dict.pth"

# The commits of this run's hub names: checkpoints keep them, and a restart loads them again.
commits: dict[str, str] = {}  # {"models/NAME@main": "0123456789abcdef..."}
_REVISED = re.compile(r"([\w.-]+(?:/[\w.-]+)?)@([\w./-]+)")
_COMMIT = re.compile("[0-9a-f]{40}")


def load_named(read: Callable[..., Any], name: str, kind: str = "model", /, **options: Any) -> Any:
    """Call a library's `read` with location and revision of `name`, and `options`.

    Args:
        kind: model (of a tokenizer, too) or dataset. A data set without a revision is left to its
            library: its content is part of what identifies a run.
    """
    place = find_local(name) if kind == "model" else name
    repo, revision = split_revision(place)
    if Path(place).exists() or (kind == "dataset" and revision is None):
        return read(place, **options)
    return read(repo, revision=_find_commit(repo, revision or "main", kind), **options)


def split_revision(name: str) -> tuple[str, str | None]:
    """Split NAME@REVISION; a path, or a name without a revision, stays whole."""
    found = None if looks_like_path(name, ()) else _REVISED.fullmatch(name)
    return (found[1], found[2]) if found else (name, None)


def _find_commit(repo: str, revision: str, kind: str) -> str:
    """Return the commit of `revision`, or `revision` if neither hub nor cache has it."""
    key = f"{kind}s/{repo}@{revision}"
    if _COMMIT.fullmatch(revision) or key in commits:
        return commits.get(key, revision)
    asked: Any = {"repo_type": kind, "revision": revision}
    with contextlib.suppress(Exception):  # whatever HTTP and the hub's client raise
        info: Any = HfApi().repo_info(repo, timeout=20, **asked)
        commits[key] = info.sha
    if key not in commits:
        with contextlib.suppress(Exception):
            cached = snapshot_download(repo, local_files_only=True, allow_patterns=[], **asked)
            commits[key] = Path(cached).name
    return commits.get(key, revision)


def find_local(name: str) -> str:
    """Return `name` or, if only that exists, its path in this repository. For a checkpoint of this
    package, return the folder of its model files (without weights).
    """
    shipped = Path(__file__).parents[1] / name
    found = str(shipped) if not Path(name).exists() and shipped.is_dir() else name
    return str(Path(found) / PRETRAINED) if is_checkpoint(name) else found


def looks_like_path(name: str, suffixes: tuple[str, ...]) -> bool:
    """Return whether `name` is the path of a file or folder, existing or not, not a hub name.
    `suffixes` are the endings of readable files, such as (".json",).
    """
    path, ending = Path(name), Path(name).suffix.lower()
    return path.exists() or path.is_absolute() or name.startswith(".") or ending in suffixes


def is_checkpoint(name: str) -> bool:
    """Return whether `name` is the folder of a checkpoint that train.py wrote."""
    return (Path(name) / STATE_DICT).is_file() and (Path(name) / PRETRAINED).is_dir()


def hub_errors(what: str, more: str = "") -> contextlib.AbstractContextManager[None]:
    """Convert any exception but UserError in the block to `hub_error`'s: `what`, reason, `more`."""
    return as_user_error(lambda error: hub_error(error)(f"{what}: {first_line(error)}{more}"))


def hub_error(error: BaseException) -> type[UserError]:
    """Return `Unavailable` if the network or the hub failed (a time-out, 429, 500 or more),
    `UserError` if it refused. Libraries wrap HTTP errors, so an error's causes are examined too.
    """
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        status = getattr(getattr(cause, "response", None), "status_code", None)
        if status is not None:
            return Unavailable if status == 429 or status >= 500 else UserError
        if isinstance(cause, OfflineModeIsEnabled):
            return UserError
        if isinstance(cause, (ConnectionError, TimeoutError, LocalEntryNotFoundError)):
            return Unavailable
        cause = cause.__cause__ or cause.__context__
    return UserError
