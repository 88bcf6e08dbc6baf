"""Files and folders that appear whole or not at all, also after a power cut.

They are written under a hidden name beside their own, flushed to the disk, and renamed. A reader
never sees half of one; what a killed process left under the hidden name is never read.
"""

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def whole_file(path: Path, binary: bool = False) -> Iterator[Any]:
    """An open file (UTF-8 text unless `binary`) that appears at `path` when the block ends.

    A block that raises leaves what was at `path` before. Raises OSError as writing does.
    """
    handle, aside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        mode, encoding = ("wb", None) if binary else ("w", "utf-8")
        with os.fdopen(handle, mode, encoding=encoding) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(aside, 0o644)
        os.replace(aside, path)
    except BaseException:
        Path(aside).unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """A folder to fill, which is at `target` when the block ends; an older one gives way then.

    A block that raises leaves what was at `target` before. Raises OSError as writing does.
    """
    aside = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}.writing-"))
    try:
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
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def write_json(path: Path, value: Any) -> None:
    """`value` as JSON at `path`, whole or not at all. Raises OSError as writing does."""
    with whole_file(path) as file:
        json.dump(value, file, indent=1, ensure_ascii=False)


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
