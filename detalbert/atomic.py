"""Files and folders that appear whole or not at all, also after a power cut.

They are written under a hidden name beside their own, flushed to the disk, and renamed. A reader
never sees half of one; what a killed process left under the hidden name is never read, and removed
by the next process that holds the lock under which it was written (`alone`, `sweep`).
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

_temporaries: set[Path] = set()  # what this process is writing


@contextlib.contextmanager
def whole_file(path: Path, binary: bool = False) -> Iterator[Any]:
    """An open file (UTF-8 text unless `binary`) that appears at `path` when the block ends.

    A block that raises leaves what was at `path` before. Raises OSError as writing does.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    mode, encoding = ("wb", None) if binary else ("w", "utf-8")
    with _temporary(Path(name)) as aside:
        with os.fdopen(handle, mode, encoding=encoding) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(aside, 0o644)
        os.replace(aside, path)


@contextlib.contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """A folder to fill, which is at `target` when the block ends; an older one gives way then.

    A block that raises leaves what was at `target` before. Raises OSError as writing does.
    """
    name = tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}.writing-")
    with _temporary(Path(name)) as aside:
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


@contextlib.contextmanager
def alone(target: Path) -> Iterator[None]:
    """Hold the lock of `target`, which is made in the block; make its folder where there is none.

    Remove what killed processes left of making it. Raises OSError as writing does.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(target.parent / f".{target.name}.lock"):
        sweep(target.parent, target.name)
        yield


def sweep(folder: Path, *names: str) -> None:
    """Remove what killed processes left in `folder` of writing `names` (patterns of glob).

    The caller holds the lock under which they are written, so no live process is writing them.
    """
    for path in [path for name in names for path in folder.glob(f".{name}.*")]:
        if path.suffix != ".lock":
            _remove(path)


def remove_temporaries() -> None:
    """Remove what this process is writing, for it is about to end."""
    for path in list(_temporaries):
        _remove(path)


def write_json(path: Path, value: Any) -> None:
    """`value` as JSON at `path`, whole or not at all. Raises OSError as writing does."""
    with whole_file(path) as file:
        json.dump(value, file, indent=1, ensure_ascii=False)


@contextlib.contextmanager
def writing(path: Path, cure: str) -> Iterator[None]:
    """Raise UserError, which names `path` and `cure`, where the system does not let the block
    write there."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{path}: cannot write there ({first_line(error)}); {cure}") from None


@contextlib.contextmanager
def _temporary(path: Path) -> Iterator[Path]:
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
