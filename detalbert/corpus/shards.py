"""Pieces -> token shards: each a function of its part of the text alone.

A job is a run of spans of the text, about one shard's worth. Processes write its pieces (see
`pieces`); when all are there they are joined to `train-00007.bin` and, of the documents that are
held out, `validation-00007.bin`, aside; renamed; and last of all the record `jobs/00007.json` is
written. A restart does the jobs without a record, and gets the same bytes. When all are there,
`index.json` makes the folder a corpus (see `corpus`).
"""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from detalbert.atomic import whole_file, write_json
from detalbert.corpus.pieces import SPLITS, Plan, piece_path

FORMAT = 1  # raise it when the columns or their meaning change


def record_path(folder: Path, number: int) -> Path:
    return folder / "jobs" / f"{number:05d}.json"


def is_done(folder: Path, number: int) -> bool:
    """Whether a job's record is there and its shards have the sizes that it names."""
    try:
        record = json.loads(record_path(folder, number).read_text())
        return all((folder / s["name"]).stat().st_size == s["bytes"] for s in record.values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def join_pieces(plan: Plan, job: int, count: int) -> None:
    """The shards and the record of a job from all its pieces, of which none is left."""
    pieces = [piece_path(plan.folder, job, number) for number in range(count)]
    record = {
        split: _join(plan, pieces, split, f"{split}-{job:05d}.bin")
        for split in SPLITS
        if any(map(len, _read(pieces, split, "counts")))
    }
    write_json(record_path(plan.folder, job), record)
    for piece in pieces:
        piece.unlink()


def _join(plan: Plan, pieces: list[Path], split: str, name: str) -> dict[str, Any]:
    """Write one shard, a column after another; returns its facts.

    At most one piece's columns are in memory at a time.
    """
    with whole_file(plan.folder / name, binary=True) as file:
        writer = _Columns(file)
        writer.column("tokens", plan.dtype, _read(pieces, split, "tokens"))
        writer.column("sentences", "<u2", _read(pieces, split, "sentences"))
        writer.column("sentence_ptr", "<i8", _pointers(_read(pieces, split, "counts")))
        writer.column("token_ptr", "<i8", _pointers(_example_tokens(pieces, split)))
        size = file.tell()
    columns = writer.columns
    return {
        "name": name,
        "bytes": size,
        "sha256": writer.sum.hexdigest(),
        "examples": columns["token_ptr"][2] - 1,
        "documents": sum(map(int, _read(pieces, split, "documents"))),
        "sentences": columns["sentences"][2],
        "tokens": columns["tokens"][2],
        "columns": columns,
    }


def _read(pieces: list[Path], split: str, name: str) -> Iterator[np.ndarray]:
    for piece in pieces:
        with np.load(piece, allow_pickle=False) as columns:
            yield columns[f"{split}-{name}"]


def _example_tokens(pieces: list[Path], split: str) -> Iterator[np.ndarray]:
    """Tokens per example, int64 [examples of a piece]."""
    both = (_read(pieces, split, name) for name in ("sentences", "counts"))
    for sentences, counts in zip(*both, strict=True):
        first = np.cumsum(counts) - counts
        yield np.add.reduceat(sentences.astype(np.int64), first) if len(counts) else counts


def _pointers(lengths: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
    """Where each of all begins, and the end of the last: one more than there are, int64."""
    end = np.zeros(1, np.int64)
    yield end
    for part in lengths:
        ends = end[-1] + np.cumsum(part)
        yield ends
        end = ends[-1:] if len(ends) else end


class _Columns:
    """The columns of a shard as they are written: dtype, offset in bytes and count of each."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.sum = file, hashlib.sha256()
        self.columns: dict[str, list[Any]] = {}

    def column(self, name: str, dtype: str, parts: Iterator[np.ndarray]) -> None:
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
    """Remove what killed processes left: pieces, and files that were being written."""
    for pattern in (".*.npz*", ".*.bin.*", ".*.npy.*", ".*.json.*", "jobs/.*.json.*"):
        for path in folder.glob(pattern):
            path.unlink(missing_ok=True)
