"""SHA-256 sums: of JSON values, stored with them, and of the files of a folder.

They tell damage and changes by mistake, not an attack: whoever changes a file can change its sum.
"""

import contextlib
import errno
import hashlib
import json
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

# An object of JSON.
Json = dict[str, Any]
# In a folder: the SHA-256 of each of its files, and for what it was made.
SUMS = "sums.json"
# The key of sealed values that has their sum.
SUM = "sha256"
LARGEST_JSON = 1 << 28  # bytes of a file


def load_json(path: Path) -> Any:
    """Return the value in a JSON file, whatever it is.

    Raises:
        OSError: it is not there, or no regular file: a device would be read for ever.
        ValueError: it is not JSON, or too large.
    """
    if not path.is_file():
        raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
    if path.stat().st_size > LARGEST_JSON:
        raise ValueError(f"more than {LARGEST_JSON:,} bytes")
    try:
        return json.loads(path.read_bytes())
    except RecursionError:
        raise ValueError("nested too deep") from None


def checksum(path: Path) -> str:
    """Return the SHA-256 of a file."""
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
    return values == seal(values)


def write_sums(folder: Path, key: str | None = None, without: Collection[str] = ()) -> None:
    """Write the SHA-256 of all files in and below `folder` into it, as SUMS.

    Args:
        folder: that is complete.
        key: for what it was made, which `find_change` compares.
        without: names of files that may change.
    """
    files = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and name not in (SUMS, *without):
            files[name] = checksum(path)
    (folder / SUMS).write_text(json.dumps({"key": key, "files": files}))


def find_change(folder: Path, key: str | None = None) -> str | None:
    """Return the name of a file that changed since `write_sums`, or None.

    Args:
        folder: existing or not.
        key: for what it is to be used; if it was made for another one, SUMS has changed.
    """
    try:
        sums = load_json(folder / SUMS)
        files = {folder / name: digest for name, digest in sums["files"].items()}
        written_for = sums["key"]
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return SUMS  # missing, or of no such form
    if key not in (None, written_for):
        return SUMS
    damaged = find_damaged(files, stamps=folder)
    return None if damaged is None else os.path.relpath(damaged, folder)


def find_damaged(sums: Mapping[Path, str], stamps: Path) -> Path | None:
    """Return the first file that is missing or changed, or None.

    Files are read once: an empty file, a stamp, named by their sizes, times and inodes, then
    records that they are unchanged. It saves 30 s for 10 GB, at each start of each rank.

    Args:
        sums: SHA-256 by path.
        stamps: folder for the stamp, if it can be written.
    """
    # The stamp of files that are just these.
    states: list[object] = []
    for path, digest in sums.items():
        if not path.is_file():
            return path
        status = path.stat()
        states += [
            path.name,
            digest,
            status.st_size,
            status.st_mtime_ns,
            status.st_ino,
        ]
    stamp = stamps / f".checked-{json_sum(states)[:32]}"
    if stamp.is_file():
        return None

    # Without one, all are read; a device would be read for ever, and is refused above.
    try:
        for path, digest in sums.items():
            if checksum(path) != digest:
                return path
    except OSError:  # a disk that fails, another user's file
        return path
    with contextlib.suppress(OSError):
        stamp.touch()
    return None
