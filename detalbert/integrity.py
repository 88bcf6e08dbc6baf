"""SHA-256 sums: of JSON values, stored with them, and of files, compared once per machine.

They tell damage and changes by mistake, not an attack: whoever changes a file can change its sum.
"""

import contextlib
import hashlib
import json
import os
import platform
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from detalbert.errors import UserError
from detalbert.names import is_inside
from detalbert.waiting import reading

# An object of JSON.
Json = dict[str, Any]
# The key of sealed values that has their sum.
SUM = "sha256"
# In a folder: what its files were when it was written.
SUMS = "sums.json"
WEIGHTS = ".safetensors"
# transformers reads these beside a tokenizer.json that is complete without them.
_BESIDE_TOKENIZER = ("added_tokens.json", "special_tokens_map.json")


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


def write_facts(
    path: Path, facts: Mapping[str, object], key: str | None = None, without: Iterable[str] = ()
) -> None:
    """Write `facts` to `path`, sealed, with the SHA-256 of the files beside and below it.

    Args:
        path: of the JSON file, in the folder that it describes.
        facts: whatever else is to be kept with the sums.
        key: for what the folder was made, which `find_change` compares.
        without: names of files that may change.
    """
    folder = path.parent
    names = [file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()]
    files = {name: checksum(folder / name) for name in sorted(set(names) - set(without))}
    path.write_text(json.dumps(seal({**facts, "key": key, "files": files})))


def find_change(path: Path, key: str | None = None, small: bool = False) -> str | None:
    """Return the name of a file changed since `write_facts` wrote `path`, or None.

    Args:
        path: of the JSON file, in the folder that it describes.
        key: for what the folder is to be used; if it was made for another one, `path` has changed.
        small: leave out weights.
    """
    folder = path.parent
    sealed = read_sealed(path) or {}
    # A name in it may be anything: one that leads out of the folder is a change as well.
    files = sealed.get("files")
    if not isinstance(files, dict) or not all(map(is_inside, files)):
        return path.name
    if key is not None and sealed.get("key") != key:
        return path.name
    sums = {}
    for name, digest in files.items():
        is_left_out = small and name.endswith(WEIGHTS)
        if not is_left_out:
            sums[folder / name] = digest
    damaged = find_damaged(sums, folder)
    if not damaged:
        return None
    return damaged[0].relative_to(folder).as_posix()


def check_model_folder(folder: Path, small: bool = False) -> None:
    """Raise UserError if files changed since their export; detected only if SUMS exists.

    Args:
        folder: of the model.
        small: leave out weights: for what reads the config or the tokenizer only.
    """
    # A folder or a dead link of that name is a change.
    if not os.path.lexists(folder / SUMS):
        return
    changed = find_change(folder / SUMS, small=small)
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
    listed = (read_sealed(folder / SUMS) or {}).get("files", {})
    for name in _BESIDE_TOKENIZER:
        if name not in listed and (folder / name).exists():
            return name
    return None


def find_damaged(sums: Mapping[Path, str], *places: Path) -> list[Path]:
    """Return the files that are missing or changed.

    A file is read once per machine: an empty file, named by a sum of the machine and of the files'
    sizes, times and inodes, then records that they are unchanged.

    Args:
        sums: SHA-256 by path.
        places: folders for the empty file; the first writable one gets it.
    """
    state = json_sum([_machine(), *map(_state, sums), *sums.values()])
    stamp = f".checked-{state[:32]}"
    is_known = any((place / stamp).is_file() for place in places)
    if is_known:
        return []

    description = f"comparing {len(sums)} files with their SHA-256"
    # Hashing releases the interpreter, so threads read several files at once.
    with reading(description, sums), ThreadPoolExecutor() as pool:
        digests = dict(zip(sums, pool.map(_sum_now, sums), strict=True))
    damaged = [path for path in sums if digests[path] != sums[path]]
    if not damaged:
        _leave_stamp(stamp, places)
    return damaged


def _leave_stamp(stamp: str, places: Iterable[Path]) -> None:
    """Make an empty file in the first folder that can be written."""
    for place in places:
        with contextlib.suppress(OSError):
            place.mkdir(parents=True, exist_ok=True)
            (place / stamp).touch()
            return


def _sum_now(path: Path) -> str | None:
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


def _machine() -> str:
    """Return an identifier of the machine, also in containers, whose host names change."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text()
    return platform.node()
