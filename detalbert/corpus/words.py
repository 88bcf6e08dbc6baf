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
from typing import Any

import numpy as np

from detalbert.squad.encoding import ranges

_MOST_WORDS = 1 << 17  # some 26 MB; beyond, the memory starts over
_AT_ONCE = 1000  # new words in a call
_AT_A_TIME = 4000  # sentences; bounds the memory that encoding objects take

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

        Equal to `backend.encode_batch(sentences, add_special_tokens=False)`. Example: "a b", a
        sentence X that stays whole, "b c". The words a, b and c are numbers 0, 1, 2 with the tokens
        7, 8 9 and 5; X has 4 6 and is number 3. So words is [0 1 1 2] without X, before [1], at
        [2]; then words is [0 1 3 1 2] and counts [2 1 2]; ptr is [0 1 3 4 6], tokens [1 2 2 2 1].
        The result is [7 8 9 4 6 8 9 5] and [3 2 3].
        """
        if not self.words or not sentences:
            return self._encode(sentences)
        if len(self.numbers) > _MOST_WORDS:
            self._forget()
        whole = self._stay_whole(sentences)
        plain = [s for s, is_whole in zip(sentences, whole, strict=True) if not is_whole]
        texts, sizes = self._take_apart(plain)
        words = self._look_up(texts)  # [p]: number of every word of the plain sentences
        counts = np.array(sizes, np.int64)  # [n - w]
        # The w sentences that stay whole get the numbers behind the known words, in this call.
        others = [s for s, is_whole in zip(sentences, whole, strict=True) if is_whole]
        ids, lengths = self._encode(others)  # [their tokens], [w]
        before = np.flatnonzero(whole) - np.arange(len(lengths))  # [w]: plain sentences before each
        at = np.append(0, np.cumsum(counts))[before]  # [w]: words before each
        words = np.insert(words, at, len(self.numbers) + np.arange(len(lengths)))  # [p + w]
        counts = np.insert(counts, before, 1)  # [n]: words per sentence
        ids = np.concatenate([self.ids, ids])  # [tokens of known words and whole sentences]
        ptr = np.append(self.ptr, self.ptr[-1] + np.cumsum(lengths))  # [known words + w + 1]
        tokens = ptr[words + 1] - ptr[words]  # [p + w]: tokens per word
        first = np.cumsum(counts) - counts  # [n]: the first word of every sentence
        return ids[ranges(ptr[words], tokens)], np.add.reduceat(tokens, first)  # [N], [n]

    def _stay_whole(self, sentences: list[str]) -> list[bool]:
        """Return for each sentence whether it must not be split into words."""
        if self.words == "bytes":
            whole = [
                not s or not s.isascii() and _NOT_PLAIN.search(s) is not None for s in sentences
            ]
        elif self.words == "marked":  # one space before a word, and nothing odd
            whole = [
                not s or s != s.strip(" ") or "  " in s or not (s.isascii() and s.isprintable())
                for s in sentences
            ]
        else:
            whole = [
                not (s.isascii() and s.isprintable()) and bool(_ODD.search(s)) for s in sentences
            ]
        joined = " ".join(sentences)
        for token in self.greedy:
            if token in joined:
                whole = [w or token in s for w, s in zip(whole, sentences, strict=True)]
        return whole

    def _take_apart(self, sentences: list[str]) -> tuple[list[str], list[int]]:
        """Return the words of all sentences, and the number of words in each."""
        if self.words == "bytes":
            words = list(map(_BYTE_WORD.findall, sentences))
            return list(chain.from_iterable(words)), list(map(len, words))
        return " ".join(sentences).split(" "), [s.count(" ") + 1 for s in sentences]

    def _look_up(self, words: list[str]) -> np.ndarray:
        """Return the numbers of words, int64 [p]; encode new ones."""
        known = len(self.numbers)
        numbers = np.fromiter(map(self.numbers.__getitem__, words), np.int64, len(words))
        if new := list(islice(reversed(self.numbers), len(self.numbers) - known))[::-1]:
            ids, lengths = self._learn(new)
            self.ids = np.concatenate([self.ids, ids])
            self.ptr = np.concatenate([self.ptr, self.ptr[-1] + np.cumsum(lengths)])
        return numbers

    def _learn(self, words: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Encode each word separately, many per call as calls are costly; return as `_encode`."""
        lines = [words[at : at + _AT_ONCE] for at in range(0, len(words), _AT_ONCE)]
        options: Any = {"is_pretokenized": True, "add_special_tokens": False}
        made = self.backend.encode_batch(lines, **options)
        ids = np.fromiter(chain.from_iterable(line.ids for line in made), np.int32)
        owner = np.fromiter(chain.from_iterable(line.word_ids for line in made), np.int64)
        owner += np.repeat(np.arange(len(made)) * _AT_ONCE, list(map(len, made)))
        return ids, np.bincount(owner, minlength=len(words))

    def _forget(self) -> None:
        """Clear the cache: word i has tokens ids[ptr[i]:ptr[i + 1]]; int32, int64 [words + 1]."""
        self.numbers: dict[str, int] = defaultdict(count().__next__)
        self.ids, self.ptr = np.zeros(0, np.int32), np.zeros(1, np.int64)

    def _encode(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Encode whole texts: return ids end to end int32 [N], and tokens per text int64 [n]."""
        ids, lengths = [np.zeros(0, np.int32)], list[int]()
        for at in range(0, len(texts), _AT_A_TIME):
            batch = texts[at : at + _AT_A_TIME]
            rows = [e.ids for e in self.backend.encode_batch_fast(batch, add_special_tokens=False)]
            lengths += map(len, rows)
            ids.append(np.fromiter(chain.from_iterable(rows), np.int32))
        return np.concatenate(ids), np.array(lengths, np.int64)


def find_word_rule(backend: Any) -> str:
    """Return how texts split into words whose tokens do not depend on the words around them.

    "apart": at spaces, which are dropped. "marked": at spaces, and a token holds the space before
    its word (Metaspace alone). "bytes": as GPT-2's and GPT-NeoX's tokenizers do, by `ByteLevel`.
    "": not known to do any of these.
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
    tokens = steps["added_tokens"]
    if not all(map(_is_local, normalizers)) or not all(map(_stays_in_word, others)):
        return ""
    if any(re.search(r"\s", token["content"]) or _takes_spaces(token) for token in tokens):
        return ""
    if first["type"] == "Metaspace" and first["prepend_scheme"] == "always" and first["split"]:
        spaces = any(re.search(r"\s", part.get("content") or "") for part in normalizers)
        return "" if spaces else "marked"
    return "apart" if first["type"] in _SPLITTERS else ""


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


def _takes_spaces(token: dict[str, Any]) -> bool:
    return token["normalized"] and (token["lstrip"] or token["rstrip"])
