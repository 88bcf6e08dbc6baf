"""Sentences -> token ids, no offsets: every distinct word of a shard is encoded once.

A corpus of gigabytes has some hundred thousand words, so nearly all of its text is looked up. Only
for tokenizers that are known to treat words apart (see `encoding`); others get the ordinary call.
"""

from collections import defaultdict
from itertools import chain, count, islice
from typing import Any

import numpy as np

from detalbert.squad.encoding import ODD, encode_distinct, marks_words, ranges, treats_words_apart

_MOST_WORDS = 1 << 17  # some 26 MB; then the memory starts over, so that it stays flat


class WordEncoder:
    """Encodes many batches of sentences and remembers their words.

    Args: backend: a `tokenizers.Tokenizer` without truncation and padding.
    """

    def __init__(self, backend: Any) -> None:
        self.backend = backend
        self.marks = marks_words(backend)
        self.apart = self.marks or treats_words_apart(backend)
        added = backend.get_added_tokens_decoder().values()
        # Those that take in spaces beside them; where a space is part of a token, any may.
        self.greedy = [t.content for t in added if self.marks or t.lstrip or t.rstrip]
        self._forget()

    def __call__(self, sentences: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Ids end to end int32 [N], and tokens per sentence int64 [n]: those of
        `backend.encode_batch(sentences, add_special_tokens=False)`."""
        if not self.apart or not sentences:
            return self._ordinary(sentences)
        if len(self.number) > _MOST_WORDS:
            self._forget()
        whole = self._whole(sentences)
        plain = [s for s, odd in zip(sentences, whole, strict=True) if not odd]
        places = self._number(plain)
        counts = np.fromiter((s.count(" ") + 1 for s in plain), np.int64, len(plain))
        # Odd sentences follow the words that are remembered, for this batch only.
        ids, lengths = self._ordinary([s for s, odd in zip(sentences, whole, strict=True) if odd])
        before = np.flatnonzero(whole) - np.arange(len(lengths))  # plain sentences before each
        at = np.append(0, np.cumsum(counts))[before]
        places = np.insert(places, at, len(self.number) + np.arange(len(lengths)))
        counts = np.insert(counts, before, 1)
        ids = np.concatenate([self.ids, ids])
        ptr = np.append(self.ptr, self.ptr[-1] + np.cumsum(lengths))
        tokens = ptr[places + 1] - ptr[places]
        return ids[ranges(ptr[places], tokens)], np.add.reduceat(tokens, np.cumsum(counts) - counts)

    def _whole(self, sentences: list[str]) -> list[bool]:
        """Which sentences may not be taken apart at spaces."""
        if self.marks:  # the tokens of one word then hold the space before it: one, and nothing odd
            whole = [
                not s or s[0] == " " or s[-1] == " " or "  " in s or not s.isascii()
                or not s.isprintable() for s in sentences
            ]  # fmt: skip
        else:
            whole = [
                not (s.isascii() and s.isprintable()) and bool(ODD.search(s)) for s in sentences
            ]
        joined = " ".join(sentences)
        for token in self.greedy:
            if token in joined:
                whole = [w or token in s for w, s in zip(whole, sentences, strict=True)]
        return whole

    def _number(self, sentences: list[str]) -> np.ndarray:
        """The number of the word at every place of the sentences, int64; new words are learnt."""
        if not sentences:
            return np.zeros(0, np.int64)
        known = len(self.number)
        words = " ".join(sentences).split(" ")
        places = np.fromiter(map(self.number.__getitem__, words), np.int64, len(words))
        if new := list(islice(reversed(self.number), len(self.number) - known))[::-1]:
            tokens = encode_distinct(self.backend, new, np.zeros(len(new), bool))
            self.ids = np.concatenate([self.ids, tokens.ids])
            self.ptr = np.concatenate([self.ptr, self.ptr[-1] + tokens.ptr[1:]])
        return places

    def _forget(self) -> None:
        self.number: dict[str, int] = defaultdict(count().__next__)
        self.ids, self.ptr = np.zeros(0, np.int32), np.zeros(1, np.int64)

    def _ordinary(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        parts, lengths = [np.zeros(0, np.int32)], []
        for at in range(0, len(texts), 4000):  # bounds what encoding objects take
            part = self.backend.encode_batch_fast(texts[at : at + 4000], add_special_tokens=False)
            rows = [encoding.ids for encoding in part]
            lengths += map(len, rows)
            parts.append(np.fromiter(chain.from_iterable(rows), np.int32))
        return np.concatenate(parts), np.array(lengths, np.int64)
