"""Atomic writes of files and folders, also across a power cut.

They are written under a hidden name in the same folder, flushed to disk and renamed. What a killed
process leaves is never read, and removed by the next holder of the lock (`alone`, `sweep`).
"""

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import filelock

from detalbert.errors import UserError, first_line

CACHE_CURE = "free space, or set data.cache_dir"
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
    with _temporary(target, "writing-") as aside:
        aside.mkdir()
        yield aside
        for path in [*aside.rglob("*"), aside]:
            _flush(path)
        os.chmod(aside, 0o755)
        if target.exists():
            old = tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}.old-")
            os.replace(target, old)
            os.replace(aside, target)
            shutil.rmtree(old, ignore_errors=True)
        else:
            os.replace(aside, target)
        _flush(target.parent)


def remove_folder(path: Path) -> None:
    """Remove a folder, if that is possible. After a kill no part of it is left under its name."""
    with contextlib.suppress(OSError), _temporary(path, "old-") as aside:
        os.replace(path, aside)


@contextlib.contextmanager
def alone(target: Path) -> Iterator[None]:
    """Hold the lock of `target` while the block creates it; create its parent folder if missing.
    Removes leftovers of killed processes. Raises OSError if the folder cannot be written.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(target.parent / f".{target.name}.lock"):
        sweep(target.parent, target.name)
        yield


def sweep(folder: Path, *names: str) -> None:
    """Remove temporary files of `names` (glob patterns) that killed processes left in `folder`. The
    caller holds the lock under which they are written, so no live process is writing them.
    """
    for path in [path for name in names for path in folder.glob(f".{name}.*")]:
        if path.suffix != ".lock":
            _remove(path)


def remove_temporaries() -> None:
    """Remove the temporary files of this process, which is about to exit."""
    for path in list(_temporaries):
        _remove(path)


def write_json(path: Path, value: Any) -> None:
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
def _temporary(target: Path, kind: str = "") -> Iterator[Path]:
    """Yield a new name. The block creates it: a signal between creation and here would leave it.

    Raises OSError if `target` is a device, a pipe, or a folder in place of a file or the reverse.
    """
    if target.exists() and not (target.is_dir() if kind else target.is_file()):
        raise FileExistsError(f"it exists and is not a {'folder' if kind else 'regular file'}")
    path = target.parent / f".{target.name}.{kind}{os.urandom(4).hex()}"
    _temporaries.add(path)
    try:
        yield path
    finally:
        _remove(path)  # unless it has its own name by now
        _temporaries.discard(path)


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
