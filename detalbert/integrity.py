"""SHA-256 sums: of JSON values, stored with them, and of files, compared once per machine."""

import contextlib
import hashlib
import json
import platform
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from detalbert.errors import UserError
from detalbert.waiting import reading

SUM = "sha256"  # the key of sealed values
SUMS = "sums.json"  # in a folder: what its files were when it was written


def checksum(path: Path) -> str:
    """Return the SHA-256 of a file, read in blocks of 1 MiB."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def json_sum(values: Any) -> str:
    """Return the SHA-256 of `values` as JSON without white space, keys sorted."""
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def seal(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return `values` with their sum added under SUM."""
    kept = {key: value for key, value in values.items() if key != SUM}
    return {**kept, SUM: json_sum(kept)}


def is_sealed(values: Mapping[str, Any]) -> bool:
    """Return whether the sum of `values` matches them."""
    return values.get(SUM) == seal(values)[SUM]


def read_sealed(path: Path) -> dict[str, Any] | None:
    """Return the values of a JSON file; None if it is missing, or their sum does not match."""
    try:
        values = json.loads(path.read_text())
        return values if is_sealed(values) else None
    except (OSError, ValueError, AttributeError):
        return None


def write_facts(path: Path, facts: Mapping[str, Any], pattern: str = "*") -> None:
    """Write `facts` to `path`, sealed, with the SHA-256 of files there that match `pattern`."""
    files = {file.name: checksum(file) for file in sorted(path.parent.glob(pattern))}
    path.write_text(json.dumps(seal({**facts, "files": files})))


def find_change(path: Path) -> str | None:
    """Return the name of a file changed since `write_facts` wrote `path`, or None."""
    if (facts := read_sealed(path)) is None:
        return path.name
    sums = {path.parent / name: digest for name, digest in facts["files"].items()}
    return next((file.name for file in find_damaged(sums, path.parent)), None)


def check_model_folder(folder: Path) -> None:
    """Raise UserError if weights changed since their export; detected only if SUMS exists."""
    if (folder / SUMS).is_file() and (fault := find_change(folder / SUMS)):
        cure = f"copy it again, or remove {SUMS} there if you changed the weights"
        raise UserError(f"{folder / fault}: not as it was written; {cure}")


def find_damaged(sums: Mapping[Path, str], *places: Path) -> list[Path]:
    """Return the files that are missing or do not have the SHA-256 in `sums`, by path.

    A file is read once per machine: an empty file in the first writable one of `places`, named by a
    sum of the machine and of the files' sizes, times and inodes, then records that they are
    unchanged.
    """
    stamp = f".checked-{json_sum([_machine(), *map(_state, sums), *sums.values()])[:32]}"
    if any((place / stamp).is_file() for place in places):
        return []
    said = f"comparing {len(sums)} files with their SHA-256"
    with reading(said, sums), ThreadPoolExecutor() as pool:  # hashing releases the interpreter
        found = pool.map(_sum_now, sums)
        damaged = [path for path, now in zip(sums, found, strict=True) if now != sums[path]]
    for place in [] if damaged else places:
        with contextlib.suppress(OSError):
            place.mkdir(parents=True, exist_ok=True)
            (place / stamp).touch()
            break
    return damaged


def _sum_now(path: Path) -> str | None:
    """Return the SHA-256 of a readable regular file, else None."""
    with contextlib.suppress(OSError):
        return checksum(path) if path.is_file() else None
    return None


def _state(path: Path) -> list[Any]:
    """Return facts that change when a file does: name, size in bytes, time in ns and inode."""
    with contextlib.suppress(OSError):
        found = path.stat()
        return [path.name, found.st_size, found.st_mtime_ns, found.st_ino]
    return []


def _machine() -> str:
    """Return an identifier of the machine, also in containers, whose host names change."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text()
    return platform.node()
