"""Token ids of texts, without offsets: every distinct word is encoded once.

Most tokenizers split a text at white space first, so a word has the same tokens everywhere, and a
corpus of gigabytes has some hundred thousand words: nearly all of its text is looked up. Used only
for tokenizers all of whose steps are known to treat words separately (`find_word_rule`); others
encode whole sentences.
"""

import json
import re
from collections import defaultdict
from itertools import chain, count, islice
from operator import methodcaller
from typing import Any

import numpy as np

from detalbert.corpus.sources import group
from detalbert.squad.encoding import ranges, tokenizing

_MOST_WORDS = 1 << 17  # some 26 MB; beyond, the memory starts over
_MOST_TEXT = 1 << 21  # characters of these words
_AT_ONCE = 1000  # new words in a call
_ENCODED = 1 << 18  # bytes that are encoded at once, about: it takes some 150 for each token

# These normalizers change each character by itself, or a mark together with its base.
_NORMALIZERS = "Precompiled NFC NFD NFKC NFKD StripAccents Lowercase BertNormalizer".split()
_SPLITTERS = ("WhitespaceSplit", "Whitespace", "BertPreTokenizer")  # these drop white space

# A normalizer may join a mark, a joiner or an Arabic number sign with the space beside it, but not
# Latin letters, digits and ordinary punctuation. So a text is odd if it has one of the former
# beside a space, or a control or format character, which some drop.
_PLAIN = "\\x20-\\u02ff\\u2010-\\u2027"
_DROPPED = "\\x00-\\x08\\x0b\\x0c\\x0e-\\x1f\\x7f-\\x9f\\xad"
_DROPPED += "\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f\\ufeff"
_ODD = re.compile(f"(?:^| )[^{_PLAIN}]|[^{_PLAIN}](?:$| )|[{_DROPPED}]")

# Words as `tokenizers.pre_tokenizers.ByteLevel` finds them, in texts of ASCII, Latin letters and
# the dashes and quotation marks of U+2010..2027; Python's re knows no others as Unicode does.
_LETTERS = "A-Za-z\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f"
_SPACES = "\\t-\\r "
_BYTE_WORD = re.compile(
    f"'(?:[stmd]|re|ve|ll)| ?[{_LETTERS}]+| ?[0-9]+| ?[^{_SPACES}{_LETTERS}0-9]+"
    f"|[{_SPACES}]+(?![^{_SPACES}])|[{_SPACES}]+"
)
_NOT_PLAIN = re.compile(f"[^\\x00-\\x7f{_LETTERS}\u2010-\u2027]")


class WordEncoder:
    """Encoder of many batches of sentences that caches their words. `backend` is a
    `tokenizers.Tokenizer` without truncation and padding.
    """

    def __init__(self, backend: Any) -> None:
        self.ids: np.ndarray  # see `_forget`
        self.ptr: np.ndarray
        self.backend = backend
        self.words = find_word_rule(backend)
        added = backend.get_added_tokens_decoder().values()
        # Added tokens that take in spaces beside them; where a space is part of a token, any may.
        apart = self.words == "apart"
        self.greedy = [t.content for t in added if not apart or t.lstrip or t.rstrip]
        self._forget()

    def __call__(self, sentences: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Return ids end to end int32 [N], and tokens per sentence int64 [n].

        Equal to `backend.encode_batch(sentences, add_special_tokens=False)`.
        """
        if not self.words or not sentences:
            return _encode(self.backend, sentences)
        if len(self.numbers) > _MOST_WORDS or self.size > _MOST_TEXT:
            self._forget()
        whole = np.array(self._stay_whole(sentences))  # bool [n]
        others = [sentences[at] for at in np.flatnonzero(whole)]
        split = _BYTE_WORD.findall if self.words == "bytes" else methodcaller("split", " ")
        texts = [split(sentences[at]) for at in np.flatnonzero(~whole)]
        words = self._look_up(list(chain.from_iterable(texts)))  # [p]
        sizes = self.ptr[words + 1] - self.ptr[words]  # [p]: tokens per word
        ends = np.cumsum([0, *map(len, texts)])
        plain = np.diff(np.append(0, np.cumsum(sizes))[ends])  # tokens per sentence in `texts`
        ids, lengths = _encode(self.backend, others)
        ids = np.concatenate([self.ids[ranges(self.ptr[words], sizes)], ids])  # [N]
        lengths = np.concatenate([plain, lengths])  # [n]
        place = np.argsort(np.argsort(whole, kind="stable"))  # [n]: plain ones are first
        first = np.cumsum(lengths) - lengths
        return ids[ranges(first[place], lengths[place])], lengths[place]

    def _stay_whole(self, sentences: list[str]) -> list[bool]:
        """Return for each sentence whether it must not be split into words."""
        odd = _NOT_PLAIN if self.words == "bytes" else _ODD
        plain = str.isascii if self.words == "bytes" else re.compile("[ -~]*").fullmatch
        whole = [not s or not plain(s) and odd.search(s) is not None for s in sentences]
        joined = " ".join(sentences)
        for token in self.greedy:
            if token in joined:
                whole = [w or token in s for w, s in zip(whole, sentences, strict=True)]
        return whole

    def _look_up(self, words: list[str]) -> np.ndarray:
        """Return the numbers of words, int64 [p]; encode new ones."""
        known = len(self.numbers)
        numbers = np.fromiter(map(self.numbers.__getitem__, words), np.int64, len(words))
        if new := list(islice(reversed(self.numbers), len(self.numbers) - known))[::-1]:
            self.size += sum(map(len, new))
            ids, lengths = self._learn(new)
            self.ids = np.concatenate([self.ids, ids])
            self.ptr = np.concatenate([self.ptr, self.ptr[-1] + np.cumsum(lengths)])
        return numbers

    def _learn(self, words: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Encode each word separately, many per call as calls are costly; return as `_encode`."""
        lines = [words[at : at + _AT_ONCE] for at in range(0, len(words), _AT_ONCE)]
        ids, lengths = [], []  # per line: int32 [tokens], int64 [words]
        for some in group(lines, lambda line: sum(map(_size, line)), _ENCODED):
            with tokenizing():
                encodings = self.backend.encode_batch(
                    some, is_pretokenized=True, add_special_tokens=False
                )
            for line, encoding in zip(some, encodings, strict=True):
                ids.append(np.array(encoding.ids, np.int32))
                owners = np.array(encoding.word_ids, np.int64)
                lengths.append(np.bincount(owners, minlength=len(line)))
        return np.concatenate(ids), np.concatenate(lengths)

    def _forget(self) -> None:
        """Clear the cache: word i has tokens ids[ptr[i]:ptr[i + 1]]; int32, int64 [words + 1]."""
        self.numbers: dict[str, int] = defaultdict(count().__next__)
        self.size = 0  # characters of all words
        self.ids, self.ptr = np.zeros(0, np.int32), np.zeros(1, np.int64)


def _encode(backend: Any, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Encode texts unsplit: return ids end to end int32 [N], and tokens per text int64 [n]."""
    ids, lengths = [np.zeros(0, np.int32)], list[int]()
    for some in group(texts, _size, _ENCODED):
        with tokenizing():
            encodings = backend.encode_batch_fast(some, add_special_tokens=False)
        for encoding in encodings:
            ids.append(np.array(encoding.ids, np.int32))
            lengths.append(len(encoding))
    return np.concatenate(ids), np.array(lengths, np.int64)


def _size(text: str) -> int:
    """Return the bytes of a text, of which none has more than one token."""
    return len(text.encode())


def find_word_rule(backend: Any) -> str:
    """Return how texts split into words whose tokens do not depend on the words around them.

    "apart": at spaces, which are dropped. "bytes": as GPT-2's and GPT-NeoX's tokenizers do, by
    `ByteLevel`. "": not known to do either.
    """
    try:
        steps = json.loads(backend.to_str())
    except Exception:  # a step that is written in Python
        return ""
    normalizers = _parts(steps["normalizer"], "normalizers")
    first, *others = _parts(steps["pre_tokenizer"], "pretokenizers") or [{"type": None}]
    if steps["model"].get("dropout"):  # BPE that draws its merges
        return ""
    if first["type"] == "ByteLevel" and first["use_regex"] and not first["add_prefix_space"]:
        # Plain text is already in its normal form (NFC).
        plain = normalizers in ([], [{"type": "NFC"}]) and steps["model"]["type"] == "BPE"
        return "bytes" if plain and not others else ""
    apart = first["type"] in _SPLITTERS and all(map(_is_local, normalizers))
    apart = apart and all(map(_stays_in_word, others))
    for token in steps["added_tokens"]:
        takes_spaces = token["normalized"] and (token["lstrip"] or token["rstrip"])
        apart = apart and not takes_spaces and not re.search(r"\s", token["content"])
    return "apart" if apart else ""


def _parts(step: dict[str, Any] | None, key: str) -> list[dict[str, Any]]:
    if step is None:
        return []
    return step[key] if step["type"] == "Sequence" else [step]


def _is_local(normalizer: dict[str, Any]) -> bool:
    if normalizer["type"] == "Replace":
        text = normalizer["pattern"].get("String", " ")  # or a Regex
        return bool(text) and not re.search(r"\s", text)
    return normalizer["type"] in _NORMALIZERS


def _stays_in_word(splitter: dict[str, Any]) -> bool:
    if splitter["type"] == "Metaspace":
        return splitter["prepend_scheme"] in ("always", "never")
    return splitter["type"] in (*_SPLITTERS, "Punctuation", "Digits")
