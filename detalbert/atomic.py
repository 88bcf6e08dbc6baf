"""Atomic writes of files and folders, also across a power cut.

They are written under a name with a mark (`_new_name`) in the same folder, flushed to disk and
renamed. Leftovers of a killed process are never read, and the next holder of the lock removes them
(`alone`, `sweep`): only names with the mark, a random number and a target that is written under
this lock, so that nobody else's file is taken for a leftover.

What was traded: flushing makes a write wait for the disk, and a folder is on it twice while the new
one replaces the old.
"""

import contextlib
import json
import logging
import os
import platform
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import filelock

from detalbert.errors import UserError, first_line
from detalbert.waiting import rank, rank_prefix, speaking, waiting

OpenFile = Callable[..., Any]  # (path, binary=False) -> an open file, of `whole_files`
CACHE_CURE = "free space, or set data.cache_dir"
# Seconds for a lock before a line says who holds it.
PATIENCE = 2.0
log = logging.getLogger(__name__)
_MARK = ".detalbert-tmp-"
_MARKED = re.compile(rf"{re.escape(_MARK)}[0-9a-f]{{16}}-(?P<target>.+)", re.DOTALL)
# What this process is writing.
_temporaries: set[Path] = set()


@contextlib.contextmanager
def whole_file(path: Path, binary: bool = False) -> Iterator[Any]:
    """Yield an open file (UTF-8 text unless `binary`) that is renamed to `path` on success. If the
    block raises, `path` is unchanged. Raises OSError if writing fails.
    """
    with whole_files() as open_file:
        yield open_file(path, binary)


@contextlib.contextmanager
def whole_files() -> Iterator[OpenFile]:
    """Yield a function that opens a file as `whole_file` does, for several that belong together:
    they are renamed when all of them are on the disk, so that an error changes none.
    """
    with contextlib.ExitStack() as stack:
        targets = {}  # by open file: its own name, and the one that it gets

        def open_file(path: Path, binary: bool = False) -> Any:
            temporary = stack.enter_context(_temporary(path))
            file = temporary.open("xb") if binary else temporary.open("x", encoding="utf-8")
            targets[stack.enter_context(file)] = temporary, path
            return file

        yield open_file
        for file, (temporary, _) in targets.items():
            file.flush()
            os.fsync(file.fileno())
            # Other users may read it, whatever this user's mask is.
            os.chmod(temporary, 0o644)
        for temporary, path in targets.values():
            os.replace(temporary, path)


@contextlib.contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """Yield a temporary folder, renamed to `target` on success; an older `target` is then removed.
    If the block raises, `target` is unchanged. Raises OSError if writing fails.
    """
    with _temporary(target, folder=True) as temporary:
        temporary.mkdir()
        yield temporary

        # Content first, then the names: after a power cut no file of the folder is empty.
        for path in [*temporary.rglob("*"), temporary]:
            _flush(path)
        os.chmod(temporary, 0o755)

        # A folder that is not empty cannot be replaced in one step.
        if target.exists():
            old = _new_name(target)
            os.replace(target, old)
            os.replace(temporary, target)
            _remove(old)
        else:
            os.replace(temporary, target)
        _flush(target.parent)


def remove_folder(path: Path) -> None:
    """Remove a folder, if that is possible. After a kill no part of it is left under its name."""
    with contextlib.suppress(OSError), _temporary(path, folder=True) as temporary:
        os.replace(path, temporary)


@contextlib.contextmanager
def alone(target: Path) -> Iterator[None]:
    """Hold the lock of `target` while the block creates it; create its parent folder if missing.
    Removes leftovers of killed processes. Raises OSError if the folder cannot be written.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with hold_lock(target.parent / f".{target.name}.lock", purpose=f"writes {target}"):
        sweep(target.parent, re.escape(target.name))
        yield


@contextlib.contextmanager
def hold_lock(path: Path, purpose: str) -> Iterator[None]:
    """Hold the lock file `path` during the block. What works in the block may log on any rank.

    If another process holds it, a line says which one and its `purpose` ("writes the tokenizer").
    Raises OSError if the lock file cannot be written.
    """
    lock = filelock.FileLock(path)
    try:
        lock.acquire(timeout=PATIENCE)
    except filelock.Timeout:
        _wait_for(lock, line=f"waiting for {_holder(path)}, which {purpose}")
    try:
        _sign(path)
        with speaking():
            yield
    finally:
        lock.release()


def _wait_for(lock: filelock.FileLock, line: str) -> None:
    """Acquire the lock. Each rank logs the line once; the first rank of a machine also later on."""
    if os.environ.get("LOCAL_RANK", "0") == "0":
        with speaking(), waiting(line):
            lock.acquire()
    else:
        log.info("%s%s", rank_prefix(), line)
        lock.acquire()


def _sign(path: Path) -> None:
    """Write into the lock file who holds it, for those that wait."""
    holder = f"process {os.getpid()} on {platform.node()}"
    if "RANK" in os.environ:
        holder = f"rank {rank()}, {holder}"
    with contextlib.suppress(OSError):  # the file is another user's
        path.write_text(holder)


def _holder(path: Path) -> str:
    """Return who holds the lock, as `_sign` wrote it; filelock before 4 empties the file."""
    with contextlib.suppress(OSError, ValueError):
        return path.read_text()[:100] or "another process"
    return "another process"


def sweep(folder: Path, targets: str) -> None:
    """Remove the temporary files and folders that killed processes left in `folder`.

    The caller holds the lock under which the targets are written, so no live process is writing.

    Args:
        folder: existing or not; what is below its folders stays.
        targets: a regular expression of the names for which they were to be renamed.
    """
    if not folder.is_dir():
        return
    for path in list(folder.iterdir()):
        marked = _MARKED.fullmatch(path.name)
        if marked and re.fullmatch(targets, marked["target"]):
            _remove(path)


def remove_temporaries() -> None:
    """Remove the temporary files of this process, which is about to exit."""
    for path in list(_temporaries):
        _remove(path)


def write_json(path: Path, value: object) -> None:
    """Write `value` as JSON to `path` atomically. Raises OSError if writing fails."""
    with whole_file(path) as file:
        json.dump(value, file, indent=1, ensure_ascii=False)


@contextlib.contextmanager
def writing(path: Path | str, cure: str = CACHE_CURE, what: str = "there") -> Iterator[None]:
    """Convert an OSError in the block to a UserError: `PATH: cannot write WHAT (REASON); CURE`."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"cannot write {what} ({first_line(error)})", key=str(path), cure=cure
        ) from None


@contextlib.contextmanager
def _temporary(target: Path, folder: bool = False) -> Iterator[Path]:
    """Yield a new name. The block creates it: a signal between creation and here would leave it.

    Raises OSError if `target` is a device, a pipe, or a folder in place of a file or the reverse.
    """
    kind = "folder" if folder else "regular file"
    can_replace = target.is_dir() if folder else target.is_file()
    if target.exists() and not can_replace:
        raise FileExistsError(f"it exists and is not a {kind}")
    path = _new_name(target)
    _temporaries.add(path)
    try:
        yield path
    finally:
        _remove(path)  # unless it has its own name by now
        _temporaries.discard(path)


def _new_name(target: Path) -> Path:
    """Return an unused name beside `target`, by which `sweep` knows whose it was."""
    return target.parent / f"{_MARK}{os.urandom(8).hex()}-{target.name}"


def _remove(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
    with contextlib.suppress(OSError):
        path.unlink()


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
