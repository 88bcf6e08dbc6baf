"""Atomic writes of files and folders, also across a power cut.

They are written under a name with a mark (`_new_name`) in the same folder, flushed to disk and
renamed. What a killed process leaves is never read, and removed by the next holder of the lock
(`alone`, `sweep`): only names with the mark, a random number and a target that is written under
this lock, so that no file of anybody else is taken for one of these.
"""

import contextlib
import json
import logging
import os
import platform
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import filelock

from detalbert.errors import UserError, first_line
from detalbert.waiting import rank, rank_prefix, speaking, waiting

CACHE_CURE = "free space, or set data.cache_dir"
PATIENCE = 2.0  # seconds for a lock before a line says who holds it
log = logging.getLogger(__name__)
_MARK = ".detalbert-tmp-"
_MARKED = re.compile(rf"{re.escape(_MARK)}[0-9a-f]{{16}}-(?P<target>.+)", re.DOTALL)
_temporaries: set[Path] = set()  # what this process is writing


@contextlib.contextmanager
def whole_file(path: Path, binary: bool = False) -> Iterator[Any]:
    """Yield an open file (UTF-8 text unless `binary`) that is renamed to `path` on success. If the
    block raises, `path` is unchanged. Raises OSError if writing fails.
    """
    mode, encoding = ("xb", None) if binary else ("x", "utf-8")
    with _temporary(path) as aside:
        with aside.open(mode, encoding=encoding) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(aside, 0o644)
        os.replace(aside, path)


@contextlib.contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """Yield a temporary folder, renamed to `target` on success; an older `target` is then removed.
    If the block raises, `target` is unchanged. Raises OSError if writing fails.
    """
    with _temporary(target, folder=True) as aside:
        aside.mkdir()
        yield aside
        for path in [*aside.rglob("*"), aside]:
            _flush(path)
        os.chmod(aside, 0o755)
        if target.exists():
            old = _new_name(target)
            os.replace(target, old)
            os.replace(aside, target)
            _remove(old)
        else:
            os.replace(aside, target)
        _flush(target.parent)


def remove_folder(path: Path) -> None:
    """Remove a folder, if that is possible. After a kill no part of it is left under its name."""
    with contextlib.suppress(OSError), _temporary(path, folder=True) as aside:
        os.replace(path, aside)


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
        _wait_for(lock, f"waiting for {_holder(path)}, which {purpose}")
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
    in_a_run = f"rank {rank()}, " if "RANK" in os.environ else ""
    with contextlib.suppress(OSError):  # of another user
        path.write_text(f"{in_a_run}process {os.getpid()} on {platform.node()}")


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
def writing(path: Path, cure: str = CACHE_CURE, what: str = "there") -> Iterator[None]:
    """Convert an OSError in the block to a UserError that names `path`, `what` and `cure`."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{path}: cannot write {what} ({first_line(error)}); {cure}") from None


@contextlib.contextmanager
def _temporary(target: Path, folder: bool = False) -> Iterator[Path]:
    """Yield a new name. The block creates it: a signal between creation and here would leave it.

    Raises OSError if `target` is a device, a pipe, or a folder in place of a file or the reverse.
    """
    if target.exists() and not (target.is_dir() if folder else target.is_file()):
        raise FileExistsError(f"it exists and is not a {'folder' if folder else 'regular file'}")
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
