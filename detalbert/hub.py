"""Names of models and data sets: a local folder, or NAME or NAME@REVISION of a hub.

A revision is a branch, a tag or a commit. It is resolved once per run: the commits are kept in this
module and in every checkpoint, and a restart loads the same ones. If the hub does not answer within
seconds, its cache must do from then on: its own client would ask for half a minute per file.
"""

import contextlib
import logging
import os
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from huggingface_hub import HfApi, constants, snapshot_download
from huggingface_hub.errors import LocalEntryNotFoundError, OfflineModeIsEnabled

from detalbert.errors import Unavailable, UserError, as_user_error, first_line
from detalbert.sums import SUMS, find_change, read_sealed

# In a checkpoint, beside Determined's files:
PRETRAINED = "pretrained"  # the model's config and the tokenizer, in the library's own files
STATE_DICT = "state_dict.pth"
# What a model folder is read from: no code, no pickles.
MODEL_FILES = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja"]
TIMEOUT = 10  # seconds

# The commits of this run's hub names: checkpoints keep them, and a restart loads them again.
commits: dict[str, str] = {}  # {"models/NAME@main": "0123456789abcdef..."}
log = logging.getLogger(__name__)
# Whether the hub did not answer this process.
_is_silent = False
_REVISED = re.compile(r"([\w.-]+(?:/[\w.-]+)?)@([\w./-]+)")
_COMMIT = re.compile("[0-9a-f]{40}")
_NO_ANSWER = ConnectionError, TimeoutError, socket.gaierror, LocalEntryNotFoundError
T = TypeVar("T")
# transformers reads these beside a tokenizer.json that is complete without them.
_BESIDE_TOKENIZER = ("added_tokens.json", "special_tokens_map.json")


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
    if Path(address).exists():
        return read(address, **options)
    repo, revision = split_revision(address)
    return read(repo, revision=_find_commit(repo, revision or "main", kind), **options)


def split_revision(name: str) -> tuple[str, str | None]:
    """Split NAME@REVISION; a path, or a name without a revision, stays whole."""
    revised = _REVISED.fullmatch(name)
    if revised is None or looks_like_path(name, ()):
        return name, None
    return revised[1], revised[2]


def looks_like_path(name: str, suffixes: tuple[str, ...]) -> bool:
    """Return whether `name` is the path of a file or folder, existing or not, not a hub name.
    `suffixes` are the endings of readable files, such as (".json",).
    """
    path = Path(name)
    if path.suffix.lower() in suffixes or name.startswith("."):
        return True
    return path.is_absolute() or path.exists()


def _find_commit(repo: str, revision: str, kind: str) -> str:
    """Return the commit of `revision`, or `revision` if neither hub nor cache knows it."""
    key = f"{kind}s/{repo}@{revision}"
    if _COMMIT.fullmatch(revision) or key in commits:
        return commits.get(key, revision)
    log.info("loading %s from the hub or its cache", repo)
    commit = _ask_hub(repo, revision, kind)
    if commit is None:
        with contextlib.suppress(Exception):
            snapshot = snapshot_download(
                repo, repo_type=kind, revision=revision, local_files_only=True, allow_patterns=[]
            )
            commit = Path(snapshot).name  # snapshots/COMMIT
    if commit is not None:
        commits[key] = commit
    return commit or revision


def _ask_hub(repo: str, revision: str, kind: str) -> str | None:
    """Return the hub's commit of `revision`; None if it has none, or gives no answer."""
    global _is_silent
    try:
        return HfApi().repo_info(repo, repo_type=kind, revision=revision, timeout=TIMEOUT).sha
    except Exception as error:  # whatever HTTP and the hub's client raise
        if not hasattr(error, "response") and hub_error(error) is Unavailable:
            log.warning("no answer from the hub (%s): its cache must do", first_line(error))
            _is_silent = constants.HF_HUB_OFFLINE = True
        return None


def find_local(name: str) -> str:
    """Return where the model files of `name` are, as far as this machine knows.

    Returns:
        `name` or, if only that exists, its path in this repository; for a checkpoint of this
        package, the folder of its model files (without weights).

    Raises:
        UserError: it is the folder of a run.
    """
    path = Path(name)
    shipped = Path(__file__).parents[1] / name  # such as embedded/albert-tiny
    if not path.exists() and not shipped.is_dir():
        return name
    folder = path if path.exists() else shipped
    checkpoints = sorted(folder.glob("checkpoints/step-*"))
    if checkpoints:
        raise UserError(
            "a run's folder",
            key=name,
            cure=f"name one of its checkpoints, such as {checkpoints[-1]}",
        )
    return str(folder / PRETRAINED if is_checkpoint(name) else folder)


def is_checkpoint(name: str) -> bool:
    """Return whether `name` is the folder of a checkpoint that train.py wrote."""
    return (Path(name) / STATE_DICT).is_file() and (Path(name) / PRETRAINED).is_dir()


def check_model_folder(folder: Path) -> None:
    """Raise UserError if files changed since their export; detected only if SUMS exists."""
    # A folder or a dead link of that name is a change.
    if not os.path.lexists(folder / SUMS):
        return
    changed = find_change(folder)
    if changed is None:
        changed = _find_extra(folder)
    if changed is not None:
        raise UserError(
            "not as it was written",
            key=str(folder / changed),
            cure=f"copy it again, or remove {SUMS} there if you changed it on purpose",
        )


def _find_extra(folder: Path) -> str | None:
    """Return the name of a file that came later and would change the tokenizer, or None."""
    sealed = read_sealed(folder / SUMS) or {"files": {}}
    for name in _BESIDE_TOKENIZER:
        if name not in sealed["files"] and (folder / name).exists():
            return name
    return None


def hub_errors(
    problem: str, *, key: str, cure: str = ""
) -> contextlib.AbstractContextManager[None]:
    """Convert any exception but UserError in the block to `KEY: PROBLEM: REASON; CURE`, of the
    class that `hub_error` returns.
    """

    def converted(error: Exception) -> UserError:
        kind = hub_error(error)
        return kind(f"{problem}: {first_line(error)}", key=key, cure=cure)

    return as_user_error(converted)


def hub_error(error: BaseException) -> type[UserError]:
    """Return `Unavailable` if the network or the hub failed (a time-out, 429, 500 or more),
    `UserError` if it refused. Libraries wrap HTTP errors, so an error's causes are examined too.
    """
    cause: BaseException | None = error
    for _ in range(20):  # causes may go in a circle
        if cause is None:
            break
        status = getattr(getattr(cause, "response", None), "status_code", None)
        if status is not None:
            return Unavailable if status == 429 or status >= 500 else UserError
        # Offline, as a user wants it, another try would not ask the hub either.
        is_absent = isinstance(cause, LocalEntryNotFoundError) and constants.HF_HUB_OFFLINE
        if is_absent or isinstance(cause, OfflineModeIsEnabled):
            return Unavailable if _is_silent else UserError
        if isinstance(cause, _NO_ANSWER):
            return Unavailable
        cause = cause.__cause__ or cause.__context__
    return UserError
