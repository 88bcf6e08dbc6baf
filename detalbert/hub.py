"""Names of models and data sets: a local folder, or NAME or NAME@REVISION of a hub.

A revision is a branch, a tag or a commit. It is resolved once per run: the commits are kept in this
module and in every checkpoint, and a restart loads the same ones. If the hub does not answer within
seconds, its cache must do.
"""

import contextlib
import os
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from huggingface_hub import HfApi, constants
from huggingface_hub.errors import LocalEntryNotFoundError

from detalbert.addresses import is_path
from detalbert.errors import Unavailable, UserError, as_user_error, first_line
from detalbert.sums import SUMS, find_change

# In a checkpoint, beside Determined's files:
PRETRAINED = "pretrained"  # the model's config and the tokenizer, in the library's own files
STATE_DICT = "state_dict.pth"
# What a model folder is read from: no code, no pickles.
MODEL_FILES = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja"]

# The commits of this run's hub names: checkpoints keep them, and a restart loads them again.
commits: dict[str, str] = {}  # {"models/NAME@main": "0123456789abcdef..."}
_REVISED = re.compile(r"([\w.-]+(?:/[\w.-]+)?)@([\w./-]+)")
_COMMIT = re.compile("[0-9a-f]{40}")
_NO_ANSWER = ConnectionError, TimeoutError, socket.gaierror, LocalEntryNotFoundError
T = TypeVar("T")


def load_named(read: Callable[..., T], name: str, kind: str = "model", /, **options: Any) -> T:
    """Return what a library's `read` returns for a name.

    Args:
        read: takes a folder, or a hub name and a `revision`.
        name: a local folder, NAME or NAME@REVISION.
        kind: model (of a tokenizer, too) or dataset.
        options: further arguments of `read`.

    Raises:
        Exception: whatever `read` raises.
    """
    address = find_local(name) if kind == "model" else name
    if os.path.exists(address):
        return read(address, **options)
    repo, revision = split_revision(address)
    return read(repo, revision=_find_commit(repo, revision or "main", kind), **options)


def load_rows(name: str, split: str, key: str) -> Any:
    """Return the rows of a split, memory-mapped, of a data set NAME, NAME@REVISION or NAME:CONFIG
    of the hub, or of a folder cloned from it. Config `key` names it.

    Raises:
        UserError: it is not there, or does not load.
        Unavailable: the hub fails.
    """
    import datasets  # takes a second, and few runs need it

    repo, _, config = name.partition(":")
    with hub_errors(f"{repo!r} is no file, and as a data set it does not load", key=key):
        return load_named(
            datasets.load_dataset,
            repo,
            "dataset",
            split=split,
            name=config or None,
        )


def split_revision(name: str) -> tuple[str, str | None]:
    """Split NAME@REVISION; a path, or a name without a revision, stays whole."""
    revised = _REVISED.fullmatch(name)
    if revised is None or is_path(name):
        return name, None
    return revised[1], revised[2]


def _find_commit(repo: str, revision: str, kind: str) -> str:
    """Return the commit of `revision`, or `revision` if neither hub nor cache knows it."""
    key = f"{kind}s/{repo}@{revision}"
    if _COMMIT.fullmatch(revision) or key in commits:
        return commits.get(key, revision)
    with contextlib.suppress(Exception):  # what then reads the name says more
        commits[key] = HfApi().resolve_revision(repo, repo_type=kind, revision=revision).resolved
    return commits.get(key, revision)


def find_local(name: str) -> str:
    """Return where the model files of `name` are, as far as this machine knows.

    Returns:
        `name` or, if only that exists, its path in this repository; for a checkpoint of this
        package, the folder of its model files (without weights).

    Raises:
        UserError: it is the folder of a run.
    """
    folder = Path(name)
    if not os.path.exists(name):
        folder = Path(__file__).parents[1] / name  # such as embedded/albert-tiny
        if not folder.is_dir():
            return name
    if (folder / "checkpoints").is_dir():
        raise UserError(
            "a run's folder",
            key=name,
            cure="name one in its checkpoints/",
        )
    return str(folder / PRETRAINED if is_checkpoint(name) else folder)


def is_checkpoint(name: str) -> bool:
    """Return whether `name` is the folder of a checkpoint that train.py wrote."""
    return Path(name, STATE_DICT).is_file() and Path(name, PRETRAINED).is_dir()


def check_model_folder(folder: Path) -> None:
    """Raise UserError if files changed since their export; detected only if SUMS exists."""
    # A folder or a dead link of that name is a change.
    changed = find_change(folder) if os.path.lexists(folder / SUMS) else None
    if changed is not None:
        raise UserError(
            "not as it was written",
            key=str(folder / changed),
            cure=f"copy it again, or remove {SUMS} there if you changed it on purpose",
        )


def hub_errors(
    problem: str, *, key: str, cure: str = ""
) -> contextlib.AbstractContextManager[None]:
    """Convert any exception but UserError in the block to `KEY: PROBLEM: REASON; CURE`, of the
    class that `hub_error` returns.
    """
    return as_user_error(
        lambda error: hub_error(error)(
            f"{problem}: {first_line(error)}",
            key=key,
            cure=cure,
        )
    )


def hub_error(error: BaseException) -> type[UserError]:
    """Return `Unavailable` if the network or the hub failed (a time-out, 429, 500 or more),
    `UserError` if it refused, or is not to be asked. Libraries wrap HTTP errors, so an error's
    causes are examined too.
    """
    cause: BaseException | None = error
    while cause is not None and not constants.HF_HUB_OFFLINE:
        status = getattr(getattr(cause, "response", None), "status_code", None)
        if status is not None:
            return Unavailable if status == 429 or status >= 500 else UserError
        if isinstance(cause, _NO_ANSWER):
            return Unavailable
        cause = cause.__cause__ or cause.__context__
    return UserError
