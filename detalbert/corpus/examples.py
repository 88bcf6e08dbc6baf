"""ALBERT's examples: consecutive sentences of one document, as many as fit in a window.

Sentences end by a rule, for languages that end them with . ! or ? A rule and not a model, because
the same text must give the same sentences everywhere, for years, at 20 MB/s. An error (an unlisted
abbreviation, a title in mid-sentence) only moves a place where a segment may be cut.
"""

import re
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from detalbert.atomic import whole_file
from detalbert.corpus.shards import Kind, Rows
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


def split_sentences(text: str) -> list[str]:
    """Return the sentences of a document in order, without the white space between them.

    >>> split_sentences('Dr. Who came. "Who?" He left.')
    ['Dr. Who came.', '"Who?"', 'He left.']
    """
    sentences: list[str] = []
    begin = 0
    for end in _END.finditer(text):
        stop = end.end(1) if end.group(1) is not None else end.start()
        if not _ABBREVIATION.search(text, max(begin, stop - 12), stop):
            if sentence := text[begin:stop].strip():
                sentences.append(sentence)
            begin = end.end()
    if sentence := text[begin:].strip():
        sentences.append(sentence)
    return sentences


class ExampleKind(Kind):
    """Examples for windows of `max_seq_length` tokens."""

    counts = "examples", "documents", "sentences", "tokens"
    exact = False

    def __init__(self, max_seq_length: int) -> None:
        self.max_seq_length = max_seq_length

    def facts(self, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
        return {"max_seq_length": self.max_seq_length, **super().facts(tokenizer)}

    def tokenize(self, encoder: WordEncoder, texts: list[str]) -> Rows:
        sentences, last = [], []
        for text in texts:
            found = split_sentences(text)
            sentences += found
            last += [False] * (len(found) - 1) + [True]
        ids, lengths = encoder(sentences)
        # Text tokens: [CLS] A [SEP] B [SEP] takes three more.
        sizes, counts = cut_examples(lengths.tolist(), last, self.max_seq_length - 3)  # [S], [E]
        ends = np.cumsum(np.append(0, sizes), dtype=np.int64)  # [S + 1]
        tokens = np.diff(ends[np.cumsum(np.append(0, counts))]).astype("<u2")  # [E]: per example
        columns = {"sentences": sizes, "sentence_ptr": counts, "token_ptr": tokens}
        totals = len(counts), len(texts), len(sizes), len(ids)
        return Rows(ids, columns, dict(zip(self.counts, totals, strict=True)))

    def describe(
        self, folder: Path, address: str, split: str, shards: list[dict[str, Any]]
    ) -> dict[str, Any]:
        """Write text tokens and sentences per example, uint16 [E, 2]; return the file's SHA-256."""
        path, empty = folder / f"{split}-lengths.npy", np.zeros((0, 2), "<u2")
        tables = [_lengths(join(address, s["name"]), s["columns"]) for s in shards]
        with whole_file(path, binary=True) as file:
            np.save(file, np.concatenate([empty, *tables]))
        return {"lengths_sha256": checksum(path)}


def cut_examples(
    sentences: list[int], last: list[bool], capacity: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return tokens per sentence, uint16 [S], and sentences per example, uint16 [E].

    A sentence of more than `capacity` tokens counts as several. `sentences` [3, 4, 9, 2] (tokens of
    each), of which `last` marks the second and fourth as ends of documents, give [3, 4, 8, 1, 2]
    and [2, 1, 2] with a capacity of 8.
    """
    lengths: list[int] = []
    counts: list[int] = []
    used = capacity  # of the last example; where that is full, a sentence begins another one
    for length, ends in zip(sentences, last, strict=True):
        while length > 0:
            size = min(length, capacity)
            length -= size
            if used + size > capacity:
                counts.append(0)
                used = 0
            lengths.append(size)
            counts[-1] += 1
            used += size
        if ends:
            used = capacity
    return np.array(lengths, "<u2"), np.array(counts, "<u2")


def _lengths(address: str, columns: dict[str, Any]) -> np.ndarray:
    """Return text tokens and sentences per example of a shard, uint16 [examples, 2]."""
    pointers = []
    for dtype, at, count in (columns["token_ptr"], columns["sentence_ptr"]):
        content = b"".join(read(address, at, at + count * np.dtype(dtype).itemsize))
        pointers.append(np.diff(np.frombuffer(content, dtype)))
    return np.stack(pointers, axis=1).astype("<u2")
