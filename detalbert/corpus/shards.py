"""Token shards joined from chunks: each depends on its job's text alone.

Processes write the chunks of a job (see `chunks`). Once all exist, they are joined to
`train-00007.bin` and, from held-out documents, `validation-00007.bin`; the record `jobs/00007.json`
is written last. A restart runs the jobs without a record and gives the same bytes. After all jobs,
`index.json` makes the folder a corpus (see `writer` and `reader`).
"""

import hashlib
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from detalbert import atomic
from detalbert.atomic import whole_file, write_json
from detalbert.corpus.chunks import SPLITS, Arrays, Plan, chunk_path
from detalbert.integrity import SUM, is_sealed, seal

FORMAT = 1  # raise it when the columns or their meaning change


def record_path(folder: Path, number: int) -> Path:
    """Return the file of a job's record, which describes its shards."""
    return folder / "jobs" / f"{number:05d}.json"


def is_done(folder: Path, number: int) -> bool:
    """Return whether a job's record exists and its shards have the recorded sizes."""
    try:
        shards = read_record(folder, number).values()
        return all((folder / s["name"]).stat().st_size == s["bytes"] for s in shards)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def read_record(folder: Path, number: int) -> dict[str, Any]:
    """Return the facts on a job's shards, by split. Raises ValueError if the record is damaged."""
    record = json.loads(record_path(folder, number).read_text())
    if SUM in record and not is_sealed(record):  # commit 596c121 wrote no sum
        raise ValueError(f"the record of job {number} is not as it was written")
    return {split: record[split] for split in SPLITS if split in record}


def file_sums(folder: Path, index: dict[str, Any]) -> dict[Path, str]:
    """Return the SHA-256 of each file that the index of shards in `folder` names."""
    sums: dict[Path, str] = {}
    for split, facts in index["splits"].items():
        sums |= {folder / shard["name"]: shard["sha256"] for shard in facts["shards"]}
        if "lengths_sha256" in facts:
            sums[folder / f"{split}-lengths.npy"] = facts["lengths_sha256"]
    return sums


def join_chunks(plan: Plan, job: int, count: int) -> None:
    """Write the shards and the record of a job from its `count` chunks; remove the chunks."""
    chunks = [chunk_path(plan.folder, job, number) for number in range(count)]
    record = {}
    for split in SPLITS:
        read = partial(_read, chunks, split)
        if any(map(len, read(next(iter(plan.kind.chunk))))):
            record[split] = _join(plan, read, f"{split}-{job:05d}.bin")
    write_json(record_path(plan.folder, job), seal(record))
    for chunk in chunks:
        chunk.unlink()


def _join(plan: Plan, read: Callable[[str], Arrays], name: str) -> dict[str, Any]:
    """Write one shard, with at most one chunk's columns in memory; return its facts."""
    with whole_file(plan.folder / name, binary=True) as file:
        writer = _Columns(file)
        writer.column("tokens", plan.dtype, read("tokens"))
        for column in plan.kind.columns(read):
            writer.column(*column)
        size = file.tell()
    return {
        "name": name,
        "bytes": size,
        "sha256": writer.sum.hexdigest(),
        **plan.kind.count(writer.columns, read),
        "columns": writer.columns,
    }


def _read(chunks: list[Path], split: str, name: str) -> Arrays:
    """Yield one column of each chunk, in order."""
    for chunk in chunks:
        with np.load(chunk, allow_pickle=False) as columns:
            yield columns[f"{split}-{name}"]


def pointers(lengths: Arrays) -> Arrays:
    """Yield start offsets and the last end: lengths [3, 1] and [2] give [0], [3, 4], [6]."""
    end = 0
    yield np.zeros(1, np.int64)
    for some in lengths:
        yield end + np.cumsum(some)
        end += int(some.sum())


class _Columns:
    """Writer of a shard's columns; keeps dtype, offset in bytes and count of each."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.sum = file, hashlib.sha256()
        self.columns: dict[str, list[Any]] = {}

    def column(self, name: str, dtype: str, parts: Arrays) -> None:
        """Append a column at a multiple of 64 bytes."""
        self._write(bytes(-self.file.tell() % 64))
        offset = self.file.tell()
        count = 0
        for part in parts:
            self._write(np.ascontiguousarray(part, dtype).tobytes())
            count += len(part)
        self.columns[name] = [np.dtype(dtype).str, offset, count]

    def _write(self, content: bytes) -> None:
        self.sum.update(content)
        self.file.write(content)


def sweep(folder: Path) -> None:
    """Remove leftovers of killed processes: chunks and temporary files."""
    for chunk in folder.glob(".*.npz"):
        chunk.unlink(missing_ok=True)
    atomic.sweep(folder, "*.npz", "*.bin", "*.npy", "*.json")
    atomic.sweep(folder / "jobs", "*.json")
