"""Tokenization of text into chunks on disk, the tasks of the processes that write shards.

A chunk is a range of one shard's text, at most some MB. Chunk boundaries do not affect the shard's
bytes: no column spans documents, and no document is cut. A `Kind` defines what text is converted
to: `examples` for ALBERT, `documents` for a causal language model.
"""

import hashlib
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from detalbert.atomic import whole_file
from detalbert.corpus.sources import Part, cut_part, group_parts, size_of
from detalbert.corpus.words import WordEncoder

SPLITS = ("train", "validation")
_CHUNKS = 32  # a shard's text is cut into about so many chunks,
_LEAST, _MOST = 1 << 18, 1 << 22  # of so many bytes
_BATCH = 1 << 19  # characters that are encoded at a time


class ShardText(NamedTuple):
    """The text of one shard; `held_out` is the fraction of its documents for validation, 0 to 1."""

    number: int
    parts: tuple[Part, ...]
    held_out: float


class Chunk(NamedTuple):
    """The chunk `number` of a job."""

    job: int
    number: int
    parts: tuple[Part, ...]
    held_out: float


Arrays = Iterator[np.ndarray]  # a column, a chunk at a time


class Kind(ABC):
    """A format of shards.

    `chunk` names the columns of a chunk besides its tokens, and their types; a shard's columns are
    computed from them. `counts` are the keys of what `count` returns.
    """

    chunk: dict[str, str]
    counts: tuple[str, ...]

    @abstractmethod
    def read(self, part: Part) -> Iterator[tuple[str, int]]:
        """Yield (text, bytes read for it) for each document of a part."""

    @abstractmethod
    def tokenize(self, encoder: WordEncoder, texts: list[str]) -> tuple[np.ndarray, ...]:
        """Return the token ids of all texts end to end [N], and the columns named in `chunk`."""

    @abstractmethod
    def columns(self, read: Callable[[str], Arrays]) -> list[tuple[str, str, Arrays]]:
        """Return (name, type, content) of a shard's columns after "tokens", made from a chunk's."""

    @abstractmethod
    def count(self, columns: dict[str, Any], read: Callable[[str], Arrays]) -> dict[str, int]:
        """Return the counts for a shard's record; `columns` has (type, offset, length) of each."""

    def describe(self, folder: Path, split: str, shards: list[dict[str, Any]]) -> dict[str, Any]:
        """Return additional facts on a split for the index."""
        return {}


class Plan(NamedTuple):
    """The folder of a corpus, and everything besides its text that the shards' bytes depend on."""

    folder: Path
    tokenizer: Any  # the library's, fast
    kind: Kind

    @property
    def dtype(self) -> str:
        """Type of token ids on disk."""
        return "<u2" if len(self.tokenizer) <= 1 << 16 else "<u4"


def cut_job(job: ShardText) -> list[Chunk]:
    """Return the chunks of a job in text order; none extends beyond one compressed stream."""
    size = min(_MOST, max(_LEAST, size_of(job.parts) // _CHUNKS))
    cuts = [cut for part in job.parts for cut in cut_part(part, -(-size // part.unit))]
    streams = itertools.groupby(cuts, key=lambda part: part.stream)
    groups = [group for _, parts in streams for group in group_parts(list(parts), size)]
    return [Chunk(job.number, n, group, job.held_out) for n, group in enumerate(groups)]


def chunk_path(folder: Path, job: int, number: int) -> Path:
    """Return the hidden file of a chunk's tokens; it is removed once its shard is written."""
    return folder / f".chunk-{job:05d}-{number:05d}.npz"


def write_chunk(plan: Plan, chunk: Chunk, encoder: WordEncoder) -> None:
    """Write the columns of both splits atomically."""
    types = {"tokens": plan.dtype, **plan.kind.chunk}
    rows: dict[str, list[tuple[np.ndarray, ...]]] = {split: [] for split in SPLITS}
    documents = dict.fromkeys(SPLITS, 0)
    for texts in _batches(plan.kind, chunk):
        held_out = [is_held_out(text, chunk.held_out) for text in texts]
        for split, wanted in zip(SPLITS, (False, True), strict=True):
            chosen = [text for text, out in zip(texts, held_out, strict=True) if out == wanted]
            if chosen:
                made = zip(plan.kind.tokenize(encoder, chosen), types.values(), strict=True)
                rows[split].append(tuple(column.astype(dtype) for column, dtype in made))
                documents[split] += len(chosen)
    columns: dict[str, Any] = {}
    empty = tuple(np.zeros(0, dtype) for dtype in types.values())
    for split in SPLITS:
        joined = map(np.concatenate, zip(empty, *rows[split], strict=True))
        for name, column in zip(types, joined, strict=True):
            columns[f"{split}-{name}"] = column
        columns[f"{split}-documents"] = np.array([documents[split]])
    with whole_file(chunk_path(plan.folder, chunk.job, chunk.number), binary=True) as file:
        np.savez(file, **columns)


def _batches(kind: Kind, chunk: Chunk) -> Iterator[list[str]]:
    """Yield the documents of a chunk in batches of about _BATCH characters."""
    texts: list[str] = []
    characters = 0
    for text, _ in itertools.chain.from_iterable(map(kind.read, chunk.parts)):
        texts.append(text)
        characters += len(text)
        if characters >= _BATCH:
            yield texts
            texts, characters = [], 0
    yield texts


def is_held_out(text: str, share: float) -> bool:
    """Return whether a document is held out, by a hash of its text, so copies stay in one split."""
    if share in (0.0, 1.0):
        return bool(share)
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") < share * 2**64
