"""SHA-256 sums: of JSON values, stored with them, and of the files of a folder.

They tell damage and changes by mistake, not an attack: whoever changes a file can change its sum.
"""

import contextlib
import hashlib
import json
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePath
from typing import Any

# An object of JSON.
Json = dict[str, Any]
# In a folder: the SHA-256 of each of its files, and for what it was made.
SUMS = "sums.json"
# The key of sealed values that has their sum.
SUM = "sha256"


def checksum(path: Path) -> str:
    """Return the SHA-256 of a file, read in blocks of 1 MiB."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def json_sum(values: object) -> str:
    """Return the SHA-256 of `values` as JSON without white space, keys sorted."""
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def seal(values: Mapping[str, object]) -> Json:
    """Return `values` with their sum added under SUM."""
    unsealed = {key: value for key, value in values.items() if key != SUM}
    return {**unsealed, SUM: json_sum(unsealed)}


def is_sealed(values: Mapping[str, object]) -> bool:
    """Return whether the sum of `values` matches them."""
    return values.get(SUM) == seal(values)[SUM]


def read_sealed(path: Path) -> Json | None:
    """Return the values of a JSON file; None if it is missing, or their sum does not match."""
    try:
        values = json.loads(path.read_text())
        return values if is_sealed(values) else None
    except (OSError, ValueError, AttributeError):
        return None


def write_sums(folder: Path, key: str | None = None, without: Iterable[str] = ()) -> None:
    """Write the SHA-256 of all files in and below `folder` into it, as SUMS.

    Args:
        folder: that is complete.
        key: for what it was made, which `find_change` compares.
        without: names of files that may change.
    """
    sums = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and name not in (SUMS, *without):
            sums[name] = checksum(path)
    sealed = seal({"key": key, "files": sums})
    (folder / SUMS).write_text(json.dumps(sealed))


def find_change(folder: Path, key: str | None = None) -> str | None:
    """Return the name of a file that changed since `write_sums`, or None.

    Args:
        folder: existing or not.
        key: for what it is to be used; if it was made for another one, SUMS has changed.
    """
    sealed = read_sealed(folder / SUMS) or {}
    files = sealed.get("files")
    if not isinstance(files, dict) or key not in (None, sealed.get("key")):
        return SUMS
    # A name that leads out of the folder is a change as well.
    if any(PurePath(name).is_absolute() or ".." in PurePath(name).parts for name in files):
        return SUMS
    sums = {folder / name: digest for name, digest in files.items()}
    damaged = find_damaged(sums, stamps=folder)
    return damaged[0].relative_to(folder).as_posix() if damaged else None


def find_damaged(sums: Mapping[Path, str], stamps: Path) -> list[Path]:
    """Return the files that are missing or changed.

    Files are read once: an empty file, a stamp, named by their sizes, times and inodes, then
    records that they are unchanged. It saves 30 s for 10 GB, at each start of each rank.

    Args:
        sums: SHA-256 by path.
        stamps: folder for the stamp, if it can be written.
    """
    states = [_state(path) for path in sums]
    state = json_sum([states, *sums.values()])
    stamp = stamps / f".checked-{state[:32]}"
    if stamp.is_file():
        return []

    # Hashing releases the interpreter, so threads read several files at once.
    damaged = []
    with ThreadPoolExecutor() as pool:
        for path, digest in zip(sums, pool.map(_sum_of, sums), strict=True):
            if digest != sums[path]:
                damaged.append(path)
    if not damaged:
        with contextlib.suppress(OSError):
            stamp.touch()
    return damaged


def _sum_of(path: Path) -> str | None:
    """Return the SHA-256 of a readable regular file, else None."""
    with contextlib.suppress(OSError):
        return checksum(path) if path.is_file() else None
    return None


def _state(path: Path) -> list[object]:
    """Return facts that change when a file does: name, size in bytes, time in ns and inode."""
    with contextlib.suppress(OSError):
        status = path.stat()
        return [path.name, status.st_size, status.st_mtime_ns, status.st_ino]
    return []
