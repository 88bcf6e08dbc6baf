"""Token shards: each depends on the text of its job alone.

A job becomes `train-00007.bin` and, from held-out documents, `validation-00007.bin`; the record
`jobs/00007.json` is written last. A restart runs the jobs without a record and gives the same
bytes. After all jobs, `index.json` makes the folder a corpus (see `writer` and `reader`).
"""

import contextlib
import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from detalbert import atomic
from detalbert.atomic import whole_file, write_json
from detalbert.corpus.kinds import SPLITS, Rows
from detalbert.integrity import is_sealed, seal

FORMAT = 1  # raise it when the columns or their meaning change
RECORD = "jobs/{:05d}.json"
INDEX, PLAN = "index.json", "plan.json"


def read_record(folder: Path, number: int, sizes: Mapping[str, int]) -> dict[str, Any] | None:
    """Return the facts on a job's shards, by split; None if it is to be done, or done again.
    `sizes` are those of all shards that are there, in bytes.
    """
    try:
        record = json.loads((folder / RECORD.format(number)).read_text())
        if not is_sealed(record):
            return None
        shards = {split: record[split] for split in SPLITS if split in record}
        whole = [sizes.get(shard["name"]) == shard["bytes"] for shard in shards.values()]
        return shards if all(whole) else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def file_sums(folder: Path, index: dict[str, Any]) -> dict[Path, str]:
    """Return the SHA-256 of each file that the index of shards in `folder` names."""
    sums: dict[Path, str] = {}
    for split, facts in index["splits"].items():
        sums |= {folder / shard["name"]: shard["sha256"] for shard in facts["shards"]}
        if "lengths_sha256" in facts:
            sums[folder / f"{split}-lengths.npy"] = facts["lengths_sha256"]
    return sums


def write_job(folder: Path, number: int, batches: Iterable[dict[str, Rows]]) -> list[str]:
    """Write shards and record of a job from its rows, by split; return the shards' names."""
    with contextlib.ExitStack() as files:
        shards = {split: _Shard(folder / f"{split}-{number:05d}.bin", files) for split in SPLITS}
        for batch in batches:
            for split, rows in batch.items():
                shards[split].add(rows)
        record = {split: shard.finish() for split, shard in shards.items() if shard.file}
    write_json(folder / RECORD.format(number), seal(record))
    return [shard["name"] for shard in record.values()]


class _Shard:
    """A shard that is written from its start to its end: tokens at once, and the other columns,
    which are short, behind the last of them. There is no file without tokens.
    """

    def __init__(self, path: Path, files: contextlib.ExitStack) -> None:
        self.path, self.files, self.sum = path, files, hashlib.sha256()
        self.file: BinaryIO | None = None
        self.columns: dict[str, list[np.ndarray]] = defaultdict(list)
        self.counts: Counter[str] = Counter()

    def add(self, rows: Rows) -> None:
        """Append documents."""
        if self.file is None and len(rows.tokens):
            self.file = self.files.enter_context(whole_file(self.path, binary=True))
            self.dtype = rows.tokens.dtype
        self._write(rows.tokens.tobytes())
        self.counts.update(rows.counts)
        for name, column in rows.columns.items():
            self.columns[name].append(column)

    def finish(self) -> dict[str, Any]:
        """Write the other columns, each at a multiple of 64 bytes; return the shard's facts."""
        places = {"tokens": [self.dtype.str, 0, self.counts["tokens"]]}
        end = self.counts["tokens"] * self.dtype.itemsize
        for name, parts in self.columns.items():
            column = np.concatenate(parts)
            if name.endswith("_ptr"):
                column = np.cumsum(np.append(0, column))
            begin = -(-end // 64) * 64
            self._write(bytes(begin - end) + column.tobytes())
            places[name] = [column.dtype.str, begin, len(column)]
            end = begin + column.nbytes
        facts = {"name": self.path.name, "bytes": end, "sha256": self.sum.hexdigest()}
        return {**facts, **self.counts, "columns": places}

    def _write(self, content: bytes) -> None:
        if self.file is not None:
            self.sum.update(content)
            self.file.write(content)


def sweep(folder: Path) -> None:
    """Remove the temporary files that killed processes left."""
    atomic.sweep(folder, "*.bin", "*.npy", "*.json")
    atomic.sweep(folder / "jobs", "*.json")
