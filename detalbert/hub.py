"""Names of models and data sets: a local folder, or NAME or NAME@REVISION of a hub.

A revision is a branch, a tag or a commit. It is resolved once per run: the commits are kept in this
module, in every checkpoint, and a restart loads the same ones. Where the hub is silent, its cache
must do, and the hub's own client would ask for minutes: so it is asked first, once, with a
time-out. The price is a request more per name.
"""

import contextlib
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from huggingface_hub import HfApi, constants, snapshot_download
from huggingface_hub.errors import LocalEntryNotFoundError, OfflineModeIsEnabled

from detalbert.errors import Unavailable, UserError, as_user_error, first_line
from detalbert.waiting import waiting

# In a checkpoint, beside Determined's files:
PRETRAINED = "pretrained"  # the model's config and the tokenizer, in the library's own files
STATE_DICT = "state_dict.pth"

# The commits of this run's hub names: checkpoints keep them, and a restart loads them again.
commits: dict[str, str] = {}  # {"models/NAME@main": "0123456789abcdef..."}
# Hub names that this process has read from.
_named: set[str] = set()
_REVISED = re.compile(r"([\w.-]+(?:/[\w.-]+)?)@([\w./-]+)")
_COMMIT = re.compile("[0-9a-f]{40}")
_NO_ANSWER = ConnectionError, TimeoutError, socket.gaierror, LocalEntryNotFoundError
T = TypeVar("T")


def load_named(read: Callable[..., T], name: str, kind: str = "model", /, **options: Any) -> T:
    """Return what a library's `read` returns for a name.

    If the hub gives no answer, only its cache is read: its client would try for half a minute per
    file.

    Args:
        read: takes a folder, or a hub name and a `revision`.
        name: a local folder, NAME or NAME@REVISION.
        kind: model (of a tokenizer, too) or dataset. A data set without a revision is left to its
            library: its content is part of what identifies a run.
        options: further arguments of `read`.

    Raises:
        ConnectionError: the hub gives no answer, and its cache does not have the name.
        Exception: whatever else `read` raises.
    """
    address = find_local(name) if kind == "model" else name
    if Path(address).exists():
        return read(address, **options)
    repo, revision = split_revision(address)
    # Of a model config, tokenizer and weights are read one after another: one line for all.
    is_next_file = kind == "model" and name in _named
    with waiting(f"loading {name} from the hub or its cache", quiet=is_next_file):
        _named.add(name)
        if kind == "dataset" and revision is None:
            _, silence = _ask_hub(repo, revision="main", kind=kind)
        else:
            commit, silence = _find_commit(repo, revision=revision or "main", kind=kind)
            options["revision"] = commit
        if silence is None:
            return read(repo, **options)

        # Read the cache alone. The client has this switch for the process only.
        try:
            constants.HF_HUB_OFFLINE = True
            return read(repo, **options)
        except Exception:
            raise ConnectionError(
                f"no answer from the hub ({silence}), and {repo!r} is not in its cache"
            ) from None
        finally:
            constants.HF_HUB_OFFLINE = False


def split_revision(name: str) -> tuple[str, str | None]:
    """Split NAME@REVISION; a path, or a name without a revision, stays whole."""
    revised = _REVISED.fullmatch(name)
    if revised is None or looks_like_path(name, ()):
        return name, None
    return revised[1], revised[2]


def _find_commit(repo: str, revision: str, kind: str) -> tuple[str, str | None]:
    """Return the commit of `revision`, or `revision` if neither hub nor cache has it, and why the
    hub gave no answer, if so.
    """
    key = f"{kind}s/{repo}@{revision}"
    if _COMMIT.fullmatch(revision) or key in commits:
        return commits.get(key, revision), None
    commit, silence = _ask_hub(repo, revision=revision, kind=kind)
    if commit is None:
        commit = _cached_commit(repo, revision=revision, kind=kind)
    if commit is None:
        return revision, silence
    commits[key] = commit
    return commit, silence


def _cached_commit(repo: str, revision: str, kind: str) -> str | None:
    """Return the commit that `revision` was when it was last downloaded, or None."""
    with contextlib.suppress(Exception):
        snapshot = snapshot_download(
            repo,
            repo_type=kind,
            revision=revision,
            local_files_only=True,
            allow_patterns=[],
        )
        return Path(snapshot).name  # snapshots/COMMIT
    return None


def _ask_hub(repo: str, revision: str, kind: str) -> tuple[str | None, str | None]:
    """Return the hub's commit of `revision`, if it has one, and why it gave no answer, if so."""
    try:
        info = HfApi().repo_info(repo, repo_type=kind, revision=revision, timeout=10)
        return info.sha, None
    except Exception as error:  # whatever HTTP and the hub's client raise
        is_silent = not hasattr(error, "response") and hub_error(error) is Unavailable
        return None, first_line(error) if is_silent else None


def find_local(name: str) -> str:
    """Return where the model files of `name` are, as far as this machine knows.

    Returns:
        `name` or, if only that exists, its path in this repository; for a checkpoint of this
        package, the folder of its model files (without weights).

    Raises:
        UserError: it is the folder of a run.
    """
    path = name
    shipped = Path(__file__).parents[1] / name  # such as embedded/albert-tiny
    if shipped.is_dir() and not Path(name).exists():
        path = str(shipped)
    checkpoints = sorted(Path(path).glob("checkpoints/step-*"))
    if checkpoints:
        raise UserError(
            "a run's folder",
            key=name,
            cure=f"name one of its checkpoints, such as {checkpoints[-1]}",
        )
    if is_checkpoint(name):
        return str(Path(path) / PRETRAINED)
    return path


# What a model folder is read from: no code, no pickles.
MODEL_FILES = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja"]


def looks_like_path(name: str, suffixes: tuple[str, ...]) -> bool:
    """Return whether `name` is the path of a file or folder, existing or not, not a hub name.
    `suffixes` are the endings of readable files, such as (".json",).
    """
    path = Path(name)
    if path.suffix.lower() in suffixes or name.startswith("."):
        return True
    return path.is_absolute() or path.exists()


def is_checkpoint(name: str) -> bool:
    """Return whether `name` is the folder of a checkpoint that train.py wrote."""
    return (Path(name) / STATE_DICT).is_file() and (Path(name) / PRETRAINED).is_dir()


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
    seen: set[int] = set()  # causes may go in a circle
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        response = getattr(cause, "response", None)
        status = getattr(response, "status_code", None)
        if status is not None:
            may_pass = status == 429 or status >= 500
            return Unavailable if may_pass else UserError
        # Offline, another try would not ask the hub either.
        is_absent = isinstance(cause, LocalEntryNotFoundError) and constants.HF_HUB_OFFLINE
        if is_absent or isinstance(cause, OfflineModeIsEnabled):
            return UserError
        if isinstance(cause, _NO_ANSWER):
            return Unavailable
        cause = cause.__cause__ or cause.__context__
    return UserError
