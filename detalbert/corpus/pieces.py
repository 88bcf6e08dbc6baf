"""Text -> tokens on the disk, a piece at a time: what the writers of shards share out.

A piece is a part of one shard's text, some MB at most. Where it is cut changes no byte of the
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
from detalbert.corpus.sources import ROW_CHARACTERS, Span, documents
from detalbert.corpus.words import WordEncoder

SPLITS = ("train", "validation")
_SHARE = 32  # a shard's text is shared out in about so many pieces,
_LEAST, _MOST = 1 << 18, 1 << 22  # of so many bytes
_BATCH = 1 << 19  # characters that are encoded at a time


class Job(NamedTuple):
    """One shard's text; `held_out` is the part of the documents that validation gets, 0 to 1."""

    number: int
    spans: tuple[Span, ...]
    held_out: float


class Piece(NamedTuple):
    """The part `number` of a job."""

    job: int
    number: int
    spans: tuple[Span, ...]
    held_out: float


class Plan(NamedTuple):
    """All that a shard's bytes depend on, but for its text."""

    folder: Path
    tokenizer: Any  # the library's, fast
    max_seq_length: int

    @property
    def capacity(self) -> int:
        """Text tokens of one window: [CLS] A [SEP] B [SEP] takes three more."""
        return self.max_seq_length - 3

    @property
    def dtype(self) -> str:
        return "<u2" if len(self.tokenizer) <= 1 << 16 else "<u4"


def size_of(spans: tuple[Span, ...]) -> int:
    """Bytes of text, about."""
    return sum((span.end - span.begin) * _unit(span) for span in spans)


def _unit(span: Span) -> int:
    """Bytes of what a span counts: hub text is counted in rows."""
    return ROW_CHARACTERS if span.address.startswith("hub:") else 1


def group_spans(spans: list[Span], part_bytes: int) -> list[tuple[Span, ...]]:
    """Neighbouring spans together until they have `part_bytes` bytes: many small files, one job."""
    groups: list[list[Span]] = []
    size = part_bytes
    for span in spans:
        if size >= part_bytes:
            groups.append([])
            size = 0
        groups[-1].append(span)
        size += size_of((span,))
    return [tuple(group) for group in groups]


def cut_job(job: Job) -> list[Piece]:
    """The pieces of a job, in the order of its text."""
    size = min(_MOST, max(_LEAST, size_of(job.spans) // _SHARE))
    spans = [part for span in job.spans for part in _cut_span(span, size)]
    groups = enumerate(group_spans(spans, size))
    return [Piece(job.number, number, group, job.held_out) for number, group in groups]


def _cut_span(span: Span, size: int) -> list[Span]:
    """Lines and rows can be read from anywhere; other documents come whole."""
    if not span.address.endswith((".txt", ".jsonl")) and not span.address.startswith("hub:"):
        return [span]
    step = -(-size // _unit(span))
    begins = range(span.begin, span.end, step)
    return [span._replace(begin=begin, end=min(span.end, begin + step)) for begin in begins]


def piece_path(folder: Path, job: int, number: int) -> Path:
    return folder / f".piece-{job:05d}-{number:05d}.npz"


def write_piece(plan: Plan, piece: Piece, encoder: WordEncoder) -> None:
    """Tokens, sentence lengths and examples of both splits, in a file that appears whole."""
    parts: dict[str, list[tuple[np.ndarray, ...]]] = {split: [] for split in SPLITS}
    counts = dict.fromkeys(SPLITS, 0)
    for texts in _batches(piece):
        held = [is_held_out(text, piece.held_out) for text in texts]
        for split, wanted in zip(SPLITS, (False, True), strict=True):
            chosen = [text for text, out in zip(texts, held, strict=True) if out == wanted]
            if chosen:
                parts[split].append(tokenize(plan, encoder, chosen))
                counts[split] += len(chosen)
    columns: dict[str, Any] = {}
    for split, rows in parts.items():
        empty = (np.zeros(0, plan.dtype), np.zeros(0, "<u2"), np.zeros(0, np.int64))
        names = ("tokens", "sentences", "counts")
        for name, column in zip(names, zip(empty, *rows, strict=True), strict=True):
            columns[f"{split}-{name}"] = np.concatenate(column)
        columns[f"{split}-documents"] = counts[split]
    with whole_file(piece_path(plan.folder, piece.job, piece.number), binary=True) as file:
        np.savez(file, **columns)


def _batches(piece: Piece) -> Iterator[list[str]]:
    texts: list[str] = []
    characters = 0
    for text, _ in itertools.chain.from_iterable(map(documents, piece.spans)):
        texts.append(text)
        characters += len(text)
        if characters >= _BATCH:
            yield texts
            texts, characters = [], 0
    yield texts


def is_held_out(text: str, part: float) -> bool:
    """Whether a document is validation's: by a hash of its text, so that copies stay together."""
    if part in (0.0, 1.0):
        return bool(part)
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") < part * 2**64


def tokenize(
    plan: Plan, encoder: WordEncoder, texts: list[str]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tokens of all sentences end to end, tokens per sentence, sentences per example.

    An example is as many sentences in a row of one document as a window holds. A sentence that is
    longer than a window counts as several.
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
    """Tokens per sentence, none over `capacity`, uint16; and sentences per example, int64.

    Args: sentences: tokens of each; last: whether it ends its document.
    """
    lengths: list[int] = []
    counts: list[int] = []
    count = used = 0
    for length, ends in zip(sentences, last, strict=True):
        while length > 0:
            piece = min(length, capacity)
            length -= piece
            if count and used + piece > capacity:
                counts.append(count)
                count = used = 0
            lengths.append(piece)
            count += 1
            used += piece
        if ends and count:
            counts.append(count)
            count = used = 0
    return np.array(lengths, "<u2"), np.array(counts, np.int64)
