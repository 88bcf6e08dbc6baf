"""ALBERT's examples: consecutive sentences of one document, as many as fit in a window."""

import hashlib
import io
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from detalbert.atomic import whole_file
from detalbert.corpus.chunks import Arrays, Kind
from detalbert.corpus.sentences import split_sentences
from detalbert.corpus.shards import pointers
from detalbert.corpus.sources import Part, read_documents
from detalbert.corpus.words import WordEncoder

_EXAMPLES = 1 << 16  # lengths of so many are read at a time


class Examples(Kind):
    """Examples for windows of `max_seq_length` tokens."""

    chunk = {"sentences": "<u2", "counts": "<i8"}
    counts = "examples", "documents", "sentences", "tokens"

    def __init__(self, max_seq_length: int) -> None:
        self.capacity = max_seq_length - 3  # text tokens: [CLS] A [SEP] B [SEP] takes three more

    def read(self, part: Part) -> Iterator[tuple[str, int]]:
        return read_documents(part)

    def tokenize(self, encoder: WordEncoder, texts: list[str]) -> tuple[np.ndarray, ...]:
        """Return ids of all sentences end to end, int32 [N], and the arrays of `cut_examples`."""
        sentences, last = [], []
        for text in texts:
            found = split_sentences(text)
            sentences += found
            last += [False] * (len(found) - 1) + [True] * bool(found)
        ids, tokens = encoder(sentences)
        return ids, *cut_examples(tokens.tolist(), last, self.capacity)

    def columns(self, read: Callable[[str], Arrays]) -> list[tuple[str, str, Arrays]]:
        return [
            ("sentences", "<u2", read("sentences")),
            ("sentence_ptr", "<i8", pointers(read("counts"))),
            ("token_ptr", "<i8", pointers(_example_tokens(read("sentences"), read("counts")))),
        ]

    def count(self, columns: dict[str, Any], read: Callable[[str], Arrays]) -> dict[str, int]:
        return {
            "examples": columns["token_ptr"][2] - 1,
            "documents": sum(int(one[0]) for one in read("documents")),
            "sentences": columns["sentences"][2],
            "tokens": columns["tokens"][2],
        }

    def describe(self, folder: Path, split: str, shards: list[dict[str, Any]]) -> dict[str, Any]:
        return {"lengths_sha256": _write_lengths(folder, split, shards)}


def _example_tokens(sentences: Arrays, counts: Arrays) -> Arrays:
    """Yield tokens per example, int64 [examples of a chunk], from tokens per sentence and sentences
    per example.
    """
    for tokens, some in zip(sentences, counts, strict=True):
        first = np.cumsum(some) - some  # each example's first sentence
        yield np.add.reduceat(tokens.astype(np.int64), first) if len(some) else some


def cut_examples(
    sentences: list[int], last: list[bool], capacity: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return tokens per sentence, uint16 [S], and sentences per example, int64 [E].

    A sentence of more than `capacity` tokens counts as several. `sentences` [3, 4, 9, 2] (tokens of
    each), of which `last` marks the second and fourth as ends of documents, give [3, 4, 8, 1, 2]
    and [2, 1, 2] with a capacity of 8.
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


def _write_lengths(folder: Path, split: str, shards: list[dict[str, Any]]) -> str:
    """Write text tokens and sentences per example, uint16 [E, 2]; return the file's SHA-256."""
    header = io.BytesIO()
    examples = sum(shard["examples"] for shard in shards)
    facts = {"descr": "<u2", "fortran_order": False, "shape": (examples, 2)}
    np.lib.format.write_array_header_1_0(header, facts)
    tables = (_lengths(folder / shard["name"], shard["columns"]) for shard in shards)
    blocks = (table.tobytes() for table in itertools.chain.from_iterable(tables))
    digest = hashlib.sha256()
    with whole_file(folder / f"{split}-lengths.npy", binary=True) as file:
        for block in itertools.chain((header.getvalue(),), blocks):
            digest.update(block)
            file.write(block)
    return digest.hexdigest()


def _lengths(path: Path, columns: dict[str, Any]) -> Iterator[np.ndarray]:
    """Yield text tokens and sentences per example of a shard, uint16 [some, 2]."""
    examples = columns["token_ptr"][2] - 1
    for at in range(0, examples, _EXAMPLES):
        both = []
        for name in ("token_ptr", "sentence_ptr"):
            dtype, offset, _ = columns[name]
            count = min(_EXAMPLES, examples - at) + 1
            pointer = np.fromfile(path, dtype, count, offset=offset + 8 * at)  # [some + 1]
            both.append(np.diff(pointer).astype("<u2"))  # [some]
        yield np.stack(both, axis=1)
