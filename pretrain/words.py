"""Sentences -> token ids, no offsets: every distinct word of a shard is encoded once.

A corpus of gigabytes has some hundred thousand words, so nearly all of its text is looked up. Only
for tokenizers that are known to treat words apart (see `encoding`); others get the ordinary call.
"""

from itertools import chain
from typing import Any, Dict, List, Tuple

import numpy as np

from encoding import ODD, ranges, treats_words_apart

_MOST_WORDS = 1 << 20  # then the memory starts over, so that it stays flat in the size of a corpus


class WordEncoder:
    """Encodes many batches of sentences and remembers their words.

    Args: backend: a `tokenizers.Tokenizer` without truncation and padding.
    """

    def __init__(self, backend: Any) -> None:
        self.backend = backend
        self.apart = treats_words_apart(backend)
        added = backend.get_added_tokens_decoder().values()
        self.greedy = [token.content for token in added if token.lstrip or token.rstrip]
        self._forget()

    def __call__(self, sentences: List[str]) -> Tuple[np.ndarray, np.ndarray]:
        """Ids end to end int32 [N], and tokens per sentence int64 [n]: those of
        `backend.encode_batch(sentences, add_special_tokens=False)`."""
        if not self.apart or not sentences:
            return self._ordinary(sentences)
        if len(self.number) > _MOST_WORDS:
            self._forget()
        number, known = self.number, len(self.number)
        places: List[int] = []
        counts = []
        for sentence in sentences:
            plain = (sentence.isascii() and sentence.isprintable()) or not ODD.search(sentence)
            whole = not plain or any(token in sentence for token in self.greedy)
            words = [sentence] if whole else sentence.split(" ")
            places += [number.setdefault(word, len(number)) for word in words]
            counts.append(len(words))
        self._learn(list(number)[known:])
        place = np.array(places, np.int64)
        tokens = self.ptr[place + 1] - self.ptr[place]
        ids = self.ids[ranges(self.ptr[place], tokens)]
        first = np.cumsum([0, *counts[:-1]])
        return ids, np.add.reduceat(tokens, first)

    def _learn(self, words: List[str]) -> None:
        ids, lengths = self._ordinary(words)
        self.ids = np.concatenate([self.ids, ids])
        self.ptr = np.concatenate([self.ptr, self.ptr[-1] + np.cumsum(lengths)])

    def _forget(self) -> None:
        self.number: Dict[str, int] = {}
        self.ids, self.ptr = np.zeros(0, np.int32), np.zeros(1, np.int64)

    def _ordinary(self, texts: List[str]) -> Tuple[np.ndarray, np.ndarray]:
        parts, lengths = [np.zeros(0, np.int32)], []
        for at in range(0, len(texts), 4000):  # bounds what encoding objects take
            part = self.backend.encode_batch_fast(texts[at : at + 4000], add_special_tokens=False)
            rows = [encoding.ids for encoding in part]
            lengths += map(len, rows)
            parts.append(np.fromiter(chain.from_iterable(rows), np.int32))
        return np.concatenate(parts), np.array(lengths, np.int64)
