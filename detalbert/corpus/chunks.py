"""Text -> tokens on the disk, a chunk at a time: what the writers of shards share out.

A chunk is a part of one shard's text, some MB at most. Where it is cut changes no byte of the
shard: sentences and examples end with their document, and no document is cut.
"""

import hashlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from detalbert.atomic import whole_file
from detalbert.corpus.sentences import split_sentences
from detalbert.corpus.sources import Part, cut_part, group_parts, read_documents, size_of
from detalbert.corpus.words import WordEncoder

SPLITS = ("train", "validation")
_CHUNKS = 32  # a shard's text is cut into about so many chunks,
_LEAST, _MOST = 1 << 18, 1 << 22  # of so many bytes
_BATCH = 1 << 19  # characters that are encoded at a time


class Job(NamedTuple):
    """The text of one shard; `held_out` is the share of its documents for validation, 0 to 1."""

    number: int
    parts: tuple[Part, ...]
    held_out: float


class Chunk(NamedTuple):
    """The chunk `number` of a job."""

    job: int
    number: int
    parts: tuple[Part, ...]
    held_out: float


class Plan(NamedTuple):
    """Everything besides its text that a shard's bytes depend on, and the folder it goes to."""

    folder: Path
    tokenizer: Any  # the library's, fast
    max_seq_length: int

    @property
    def capacity(self) -> int:
        """Text tokens of one window: [CLS] A [SEP] B [SEP] takes three more."""
        return self.max_seq_length - 3

    @property
    def dtype(self) -> str:
        """The type of token ids on the disk."""
        return "<u2" if len(self.tokenizer) <= 1 << 16 else "<u4"


def cut_job(job: Job) -> list[Chunk]:
    """The chunks of a job, in the order of its text."""
    size = min(_MOST, max(_LEAST, size_of(job.parts) // _CHUNKS))
    cuts = [cut for part in job.parts for cut in cut_part(part, -(-size // part.unit))]
    groups = enumerate(group_parts(cuts, size))
    return [Chunk(job.number, number, group, job.held_out) for number, group in groups]


def chunk_path(folder: Path, job: int, number: int) -> Path:
    """The hidden file of a chunk's tokens; it is gone when its shard is there."""
    return folder / f".chunk-{job:05d}-{number:05d}.npz"


def write_chunk(plan: Plan, chunk: Chunk, encoder: WordEncoder) -> None:
    """Write tokens, sentence lengths and examples of both splits; the file appears whole."""
    rows: dict[str, list[tuple[np.ndarray, ...]]] = {split: [] for split in SPLITS}
    documents = dict.fromkeys(SPLITS, 0)
    for texts in _batches(chunk):
        held_out = [is_held_out(text, chunk.held_out) for text in texts]
        for split, wanted in zip(SPLITS, (False, True), strict=True):
            chosen = [text for text, out in zip(texts, held_out, strict=True) if out == wanted]
            if chosen:
                rows[split].append(tokenize(plan, encoder, chosen))
                documents[split] += len(chosen)
    columns: dict[str, Any] = {}
    empty = (np.zeros(0, plan.dtype), np.zeros(0, "<u2"), np.zeros(0, np.int64))
    for split in SPLITS:
        joined = map(np.concatenate, zip(empty, *rows[split], strict=True))
        for name, column in zip(("tokens", "sentences", "counts"), joined, strict=True):
            columns[f"{split}-{name}"] = column
        columns[f"{split}-documents"] = documents[split]
    with whole_file(chunk_path(plan.folder, chunk.job, chunk.number), binary=True) as file:
        np.savez(file, **columns)


def _batches(chunk: Chunk) -> Iterator[list[str]]:
    """The documents of a chunk, about _BATCH characters at a time."""
    texts: list[str] = []
    characters = 0
    for text, _ in itertools.chain.from_iterable(map(read_documents, chunk.parts)):
        texts.append(text)
        characters += len(text)
        if characters >= _BATCH:
            yield texts
            texts, characters = [], 0
    yield texts


def is_held_out(text: str, share: float) -> bool:
    """Whether validation gets a document: a hash of its text decides, so copies stay together."""
    if share in (0.0, 1.0):
        return bool(share)
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") < share * 2**64


def tokenize(
    plan: Plan, encoder: WordEncoder, texts: list[str]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Token ids of all sentences end to end, `plan.dtype` [N]; then as `cut_examples`: tokens per
    sentence, uint16 [S], and sentences per example, int64 [E].

    An example holds as many sentences in a row of one document as fit in a window.
    """
    sentences, last = [], []
    for text in texts:
        found = split_sentences(text)
        sentences += found
        last += [False] * (len(found) - 1) + [True] * bool(found)
    ids, tokens = encoder(sentences)
    lengths, counts = cut_examples(tokens.tolist(), last, plan.capacity)
    return ids.astype(plan.dtype), lengths, counts


def cut_examples(
    sentences: list[int], last: list[bool], capacity: int
) -> tuple[np.ndarray, np.ndarray]:
    """Tokens per sentence, uint16 [S], and sentences per example, int64 [E].

    A sentence of more than `capacity` tokens counts as several. Sentences [3, 4, 9, 2], the second
    and the last of which end a document, make [3, 4, 8, 1, 2] and [2, 1, 2] at a capacity of 8.

    Args: sentences: tokens of each; last: whether it ends its document.
    """
    lengths: list[int] = []
    counts: list[int] = []
    count = used = 0
    for length, ends in zip(sentences, last, strict=True):
        while length > 0:
            size = min(length, capacity)
            length -= size
            if count and used + size > capacity:
                counts.append(count)
                count = used = 0
            lengths.append(size)
            count += 1
            used += size
        if ends and count:
            counts.append(count)
            count = used = 0
    return np.array(lengths, "<u2"), np.array(counts, np.int64)
