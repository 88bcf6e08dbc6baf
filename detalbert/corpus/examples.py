"""ALBERT's examples: consecutive sentences of one document, as many as fit in a window.

Sentences end by a rule, for languages that end them with . ! or ? A rule and not a model, because
the same text must give the same sentences everywhere, for years, at 20 MB/s. An error (an unlisted
abbreviation, a title in mid-sentence) only moves a place where a segment may be cut.
"""

import bisect
import re
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from detalbert.atomic import whole_file
from detalbert.corpus.blocks import SEGMENT, Segments, find_space
from detalbert.corpus.shards import DOCUMENT, OPEN, SENTENCE, Columns, Kind, Rows
from detalbert.corpus.storage import join, read
from detalbert.corpus.words import WordEncoder
from detalbert.integrity import checksum

# A line end; or an end mark, closing quotes or brackets, white space, and something that can begin
# a sentence. A set of characters comes first, which the engine finds without trying every place:
# four times as fast as an alternative or a look-behind first.
_END = re.compile(r"""[.!?\n](?:(?<=\n)\n*|(["'”’)\]]*)\s+(?=["'“‘(\[]?[A-Z0-9À-Þ]))""")
_ABBREVIATION = re.compile(
    r"""(?:^|[\s("'“])(?:[A-Z]|Mr|Mrs|Ms|Dr|St|Prof|Gen|Col|Lt|Sgt|Capt|Rev|Hon|Jr|Sr|vs|etc|No|"""
    r"""Vol|Fig|ca|approx|e\.g|i\.e|cf|U\.S|U\.K|D\.C)\.$"""
)


# A character that no match of _END takes in, and that ends what its look-ahead reads.
_PLAIN = r"""[^\s.!?"'”’)\]“‘(\[]"""
_FIRST_PLAIN, _LAST_PLAIN = re.compile(_PLAIN), re.compile(f".*{_PLAIN}", re.DOTALL)
_TAILS = 1 << 12, 1 << 15, SEGMENT  # characters that are searched for the last sentence's end


def split_sentences(text: str, starts: bool = True) -> list[str]:
    """Return the sentences of a segment in order, without the white space between them. `starts`
    says whether a document begins with it.

    >>> split_sentences('Dr. Who came. "Who?" He left.')
    ['Dr. Who came.', '"Who?"', 'He left.']
    """
    sentences: list[str] = []
    begin = 0
    text = text if starts else "\n" + text  # _ABBREVIATION's ^ is the start of a document
    for end in _END.finditer(text):
        stop = end.end(1) if end.group(1) is not None else end.start()
        if not _ABBREVIATION.search(text, max(begin, stop - 12), stop):
            if sentence := text[begin:stop].strip():
                sentences.append(sentence)
            begin = end.end()
    if sentence := text[begin:].strip():
        sentences.append(sentence)
    return sentences


def find_sentence_end(text: str) -> int | None:
    """Return the place behind the last sentence that ends in a text, which is part of a longer one,
    and behind the white space that follows it; None if none is sure to end there.

    On both sides of the place `split_sentences` gives the sentences of the longer text: the search
    is between two characters that are part of no end, and the rule for abbreviations sees more of
    the sentence here than there.
    """
    last = _LAST_PLAIN.match(text)
    for tail in _TAILS if last else ():
        first = _FIRST_PLAIN.search(text, max(0, len(text) - tail))
        ends = list(_END.finditer(text, first.start(), last.end())) if first else []
        for end in reversed(ends):
            stop = end.end(1) if end.group(1) is not None else end.start()
            if not _ABBREVIATION.search(text, max(0, stop - 12), stop):
                return end.end()
    return None


class ExampleKind(Kind):
    """Examples for windows of `max_seq_length` tokens."""

    counts = "examples", "documents", "sentences", "tokens"
    exact = False

    def __init__(self, max_seq_length: int) -> None:
        self.max_seq_length = max_seq_length

    def facts(self, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
        return {"max_seq_length": self.max_seq_length, **super().facts(tokenizer)}

    def find_cut(self, text: str) -> int:
        """Return the place behind the last sentence; behind a word of a longer sentence."""
        return find_sentence_end(text) or find_space(text)

    def tokenize(self, encoder: WordEncoder, segments: Segments) -> Rows:
        sentences: list[str] = []
        ends: list[int] = []  # of each: what ends with it
        starts = segments.starts
        for text, is_last in zip(segments.texts, segments.ends, strict=True):
            in_text = split_sentences(text, starts) or [""]
            sentences += in_text
            # White space behind a sentence's end is before the cut, that behind a word after it.
            last = SENTENCE if text[-1:].isspace() else OPEN
            ends += [SENTENCE] * (len(in_text) - 1) + [DOCUMENT if is_last else last]
            starts = is_last
        ids, lengths = encoder(sentences)
        return Rows(ids, lengths, ends=np.array(ends, np.uint8), text_bytes=0)

    def columns(self) -> Columns:
        return ExampleColumns(self.max_seq_length - 3)  # [CLS] A [SEP] B [SEP] takes three more

    def describe(
        self, folder: Path, address: str, split: str, shards: list[dict[str, Any]]
    ) -> dict[str, Any]:
        """Write text tokens and sentences per example, uint16 [E, 2]; return the file's SHA-256."""
        path, empty = folder / f"{split}-lengths.npy", np.zeros((0, 2), "<u2")
        tables = [_lengths(join(address, s["name"]), s["columns"]) for s in shards]
        with whole_file(path, binary=True) as file:
            np.save(file, np.concatenate([empty, *tables]))
        return {"lengths_sha256": checksum(path)}


class ExampleColumns(Columns):
    """Tokens per sentence, and sentences and tokens per example of at most `capacity` tokens.

    The last example of a document that has not ended is open: its rows are added to the next ones.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.lengths, self.ends = np.zeros(0, np.int64), np.zeros(0, np.uint8)  # of the open rows

    def add(self, rows: Rows) -> tuple[dict[str, np.ndarray], dict[str, int]]:
        lengths = np.append(self.lengths, rows.lengths)  # [R]
        ends = np.append(self.ends, rows.ends)  # [R]
        # Rows to sentences, of which the last may be open.
        first = np.flatnonzero(np.append(SENTENCE, ends[:-1]) != OPEN)  # [S]: each one's first row
        lengths = np.add.reduceat(lengths, first)  # [S]
        ends = ends[np.append(first[1:], len(ends)) - 1]  # [S]
        # Sentences to examples, of which the last may be open: then its sentences are held back.
        sizes, counts = cut_examples(lengths, ends == DOCUMENT, self.capacity)  # [S'], [E]
        last_stop = np.flatnonzero(np.append(DOCUMENT, ends) == DOCUMENT)[-1]
        is_open = bool(lengths[last_stop:].any())
        held = int(counts[-1]) if is_open else 0
        sizes, held_sizes = np.split(sizes, [len(sizes) - held])
        counts = counts[: len(counts) - is_open]
        self.lengths, self.ends = held_sizes.astype(np.int64), np.full(held, SENTENCE, np.uint8)
        if held and lengths[-1]:
            self.ends[-1] = ends[-1]
        places = np.cumsum(np.append(0, sizes), dtype=np.int64)  # [S' + 1]: each sentence's tokens
        tokens = np.diff(places[np.cumsum(np.append(0, counts))]).astype("<u2")  # [E]: per example
        columns = {"sentences": sizes, "sentence_ptr": counts, "token_ptr": tokens}
        totals = len(counts), int((ends == DOCUMENT).sum()), len(sizes), len(rows.tokens)
        return columns, dict(zip(ExampleKind.counts, totals, strict=True))


def cut_examples(
    sentences: np.ndarray, last: np.ndarray, capacity: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return tokens per sentence, uint16 [S], and sentences per example, uint16 [E].

    A sentence of more than `capacity` tokens counts as several. `sentences` [3, 4, 9, 2] (tokens of
    each), of which `last` marks the second and fourth as ends of documents, give [3, 4, 8, 1, 2]
    and [2, 1, 2] with a capacity of 8.
    """
    parts = -(-sentences // capacity)  # of each sentence; none of an empty one
    sizes = np.full(parts.sum(), capacity)  # [S]
    final = np.cumsum(parts)
    sizes[final[parts > 0] - 1] = (sentences - (parts - 1) * capacity)[parts > 0]
    ends = np.cumsum(np.append(0, sizes)).tolist()  # [S + 1], in tokens
    counts: list[int] = []
    begin = 0
    for stop in [*final[last].tolist(), len(sizes)]:
        while begin < stop:
            end = bisect.bisect_right(ends, ends[begin] + capacity, begin + 1, stop + 1) - 1
            counts.append(end - begin)
            begin = end
    return sizes.astype("<u2"), np.array(counts, "<u2")


def _lengths(address: str, columns: dict[str, Any]) -> np.ndarray:
    """Return text tokens and sentences per example of a shard, uint16 [examples, 2]."""
    pointers = []
    for dtype, at, count in (columns["token_ptr"], columns["sentence_ptr"]):
        content = b"".join(read(address, at, at + count * np.dtype(dtype).itemsize))
        pointers.append(np.diff(np.frombuffer(content, dtype)))
    return np.stack(pointers, axis=1).astype("<u2")
