"""Examples of encoders: consecutive sentences of one document, as many as fit in a window."""

import bisect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from detalbert.atomic import whole_file
from detalbert.corpus.blocks import Segments, find_space
from detalbert.corpus.sentences import RULE, find_sentence_end, split_sentences
from detalbert.corpus.shards import DOCUMENT, OPEN, SENTENCE, Columns, Kind, Rows, ShardFacts
from detalbert.corpus.words import WordEncoder
from detalbert.integrity import checksum
from detalbert.reading.storage import join, read
from detalbert.squad.encoding import tokenizing

_EXAMPLES = 1 << 18  # whose lengths are read at a time
_SPECIAL_TOKENS = 3  # [CLS] A [SEP] B [SEP]


def example_kind(tokenizer: PreTrainedTokenizerBase, max_seq_length: int) -> "ExampleKind":
    """Return the kind of a tokenizer's examples."""
    backend = tokenizer.backend_tokenizer
    with tokenizing():
        # Those of GPT-2's kind have the space before a word in its token.
        first_word, word = (backend.encode(text).ids for text in ("a", " a"))
    special_tokens = tokenizer.num_special_tokens_to_add(pair=True)
    return ExampleKind(
        max_seq_length,
        special_tokens=max(special_tokens, _SPECIAL_TOKENS),
        spaced=word != first_word,
    )


class ExampleKind(Kind):
    """Examples for windows of `max_seq_length` tokens.

    Args:
        max_seq_length: tokens of the longest window.
        special_tokens: of a window with two segments.
        spaced: whether a sentence has the space before it, as its first word's token then has.
    """

    counts = "examples", "documents", "sentences", "tokens"
    exact = False

    def __init__(
        self, max_seq_length: int, special_tokens: int = _SPECIAL_TOKENS, spaced: bool = False
    ) -> None:
        self.max_seq_length = max_seq_length
        self.special_tokens = special_tokens
        self.spaced = spaced

    def facts(self, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
        facts = {
            "max_seq_length": self.max_seq_length,
            "sentences": RULE,
            **super().facts(tokenizer),
        }
        if self.spaced:
            facts["spaced"] = True
        return facts

    def find_cut(self, text: str) -> int:
        """Return the place behind the last sentence; behind a word of a longer sentence."""
        return find_sentence_end(text) or find_space(text)

    def tokenize(self, encoder: WordEncoder, segments: Segments) -> Rows:
        sentences: list[str] = []
        ends: list[int] = []  # of each: what ends with it
        starts = segments.starts
        for text, is_last in zip(segments.texts, segments.ends, strict=True):
            # A segment without sentences has an empty one, which may end a document.
            text_sentences = split_sentences(text, starts, self.spaced) or [""]
            sentences += text_sentences
            ends += [SENTENCE] * len(text_sentences)
            if is_last:
                ends[-1] = DOCUMENT
            elif not text[-1].isspace():  # cut behind a word: see `find_cut`
                ends[-1] = OPEN
            starts = is_last
        ids, lengths = encoder(sentences)
        return Rows(
            tokens=ids,
            lengths=lengths,
            ends=np.array(ends, dtype=np.uint8),
            text_bytes=0,
        )

    def columns(self) -> Columns:
        return ExampleColumns(self.max_seq_length - self.special_tokens)

    def describe(
        self, folder: Path, address: str, split: str, shards: list[ShardFacts]
    ) -> dict[str, str]:
        """Write text tokens and sentences per example, uint16 [E, 2]; return the file's SHA-256."""
        path = folder / f"{split}-lengths.npy"
        examples = sum(shard["examples"] for shard in shards)
        # The file of np.save, written in blocks.
        header = {"descr": "<u2", "fortran_order": False, "shape": (examples, 2)}
        with whole_file(path, binary=True) as file:
            np.lib.format.write_array_header_1_0(file, header)
            for shard in shards:
                shard_address = join(address, shard["name"])
                for block in _read_lengths(shard_address, places=shard["columns"]):
                    file.write(block.tobytes())
        return {"lengths_sha256": checksum(path)}


class ExampleColumns(Columns):
    """Tokens per sentence, and sentences and tokens per example of at most `capacity` tokens.

    The last example of a document that has not ended is open: its sentences are added again, with
    the next rows. So they are as if the document had been added at once.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.open_lengths = np.zeros(0, dtype=np.int64)  # tokens per sentence of the open example
        self.open_ends = np.zeros(0, dtype=np.uint8)

    def add(self, rows: Rows) -> tuple[dict[str, np.ndarray], dict[str, int]]:
        # The open example's sentences come first; a sentence may have several rows.
        lengths, ends = _join_rows(
            np.append(self.open_lengths, rows.lengths),
            np.append(self.open_ends, rows.ends),
        )  # [S], [S]
        is_last = ends == DOCUMENT
        sizes, counts = cut_examples(lengths, is_last, self.capacity)  # [S'], [E]

        # Hold the open example back.
        held = 0  # sentences
        if _is_open(lengths, ends):
            held = int(counts[-1])
            counts = counts[:-1]
        complete = len(sizes) - held
        sizes, held_sizes = np.split(sizes, [complete])
        self.open_lengths = held_sizes.astype(np.int64)
        self.open_ends = np.full(held, SENTENCE, dtype=np.uint8)
        if held and lengths[-1]:
            self.open_ends[-1] = ends[-1]

        columns = {
            "sentences": sizes,
            "sentence_ptr": counts,
            "token_ptr": _sum_sentences(sizes, counts).astype("<u2"),
        }
        totals = {
            "examples": len(counts),
            "documents": int(is_last.sum()),
            "sentences": len(sizes),
            "tokens": len(rows.tokens),
        }
        return columns, totals


def _sum_sentences(sizes: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return the tokens of examples, int64 [E], which are those of their sentences.

    Args:
        sizes: tokens per sentence, [S].
        counts: sentences per example, [E].
    """
    token_ends = np.cumsum(sizes, dtype=np.int64)
    sentence_ends = np.cumsum(counts, dtype=np.int64)
    tokens_before = np.append(0, token_ends)  # [S + 1]
    first_sentence = np.append(0, sentence_ends)  # [E + 1]
    return np.diff(tokens_before[first_sentence])


def _join_rows(lengths: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return tokens per sentence and what ends with each, of rows; the last may be open."""
    follows_end = np.append(True, ends[:-1] != OPEN)  # [R]
    first = np.flatnonzero(follows_end)  # [S]: row
    last = np.append(first[1:], len(ends)) - 1  # [S]: row
    tokens = np.add.reduceat(lengths, first)
    return tokens, ends[last]


def _is_open(lengths: np.ndarray, ends: np.ndarray) -> bool:
    """Return whether there are tokens behind the last document that ends."""
    documents = np.flatnonzero(ends == DOCUMENT)
    first = documents[-1] + 1 if len(documents) else 0
    open_lengths = lengths[first:]
    return bool(open_lengths.any())


def cut_examples(
    sentences: np.ndarray, last: np.ndarray, capacity: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return tokens per sentence, uint16 [S], and sentences per example, uint16 [E].

    A sentence of more than `capacity` tokens counts as several. `sentences` [3, 4, 9, 2] (tokens of
    each), of which `last` marks the second and fourth as ends of documents, give [3, 4, 8, 1, 2]
    and [2, 1, 2] with a capacity of 8.
    """
    parts = -(-sentences // capacity)  # of each sentence, rounded up; 0 of an empty one
    part_ends = np.cumsum(parts)
    sizes = np.full(parts.sum(), capacity)  # [S]

    # The last part of a sentence has what the others leave.
    remainders = sentences - (parts - 1) * capacity
    has_parts = parts > 0
    last_parts = part_ends[has_parts] - 1
    sizes[last_parts] = remainders[has_parts]

    # Take as many sentences as fit, within each document.
    ends = np.append(0, np.cumsum(sizes)).tolist()  # [S + 1]: in tokens
    document_ends = part_ends[last].tolist()
    counts: list[int] = []
    begin = 0
    for stop in [*document_ends, len(sizes)]:
        while begin < stop:
            room = ends[begin] + capacity
            end = bisect.bisect_right(ends, room, lo=begin + 1, hi=stop + 1) - 1
            counts.append(end - begin)
            begin = end
    return sizes.astype("<u2"), np.array(counts, dtype="<u2")


def _read_lengths(address: str, places: dict[str, Any]) -> Iterator[np.ndarray]:
    """Yield text tokens and sentences per example of a shard, uint16 [examples, 2], in blocks.

    Args:
        address: of the shard.
        places: by column, its dtype, first byte and number of values.
    """
    _, _, offsets_count = places["token_ptr"]
    examples = offsets_count - 1
    for first in range(0, examples, _EXAMPLES):
        stop = min(examples, first + _EXAMPLES) + 1
        lengths = []
        for name in ("token_ptr", "sentence_ptr"):
            dtype, column_begin, _ = places[name]
            size = np.dtype(dtype).itemsize
            content = read(
                address,
                begin=column_begin + first * size,
                end=column_begin + stop * size,
            )
            offsets = np.frombuffer(b"".join(content), dtype=dtype)
            lengths.append(np.diff(offsets))
        yield np.stack(lengths, axis=1).astype("<u2")
