"""Token ids of texts, without offsets: every distinct word is encoded once.

Most tokenizers split a text at white space first, so a word has the same tokens everywhere, and a
corpus of gigabytes has some hundred thousand words: nearly all of its text is looked up. Used only
for tokenizers all of whose steps are known to treat words separately (`find_word_rule`); others
encode whole sentences.
"""

import json
import re
from collections import defaultdict
from collections.abc import Callable
from itertools import chain, count, islice
from operator import methodcaller
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from detalbert.corpus.sources import group
from detalbert.squad.encoding import ranges, tokenizing

_MOST_WORDS = 1 << 17  # some 26 MB; beyond, the memory starts over
_MOST_TEXT = 1 << 21  # characters of these words
_AT_ONCE = 1000  # new words in a call
_ENCODED = 1 << 18  # bytes that are encoded at once, about: it takes some 150 for each token
_Step = dict[str, Any]  # a normalizer or pre-tokenizer, as tokenizer.json has it

# These normalizers change each character by itself, or a mark together with its base.
_NORMALIZERS = "Precompiled NFC NFD NFKC NFKD StripAccents Lowercase BertNormalizer".split()
_SPLITTERS = ("WhitespaceSplit", "Whitespace", "BertPreTokenizer")  # these drop white space

# A normalizer may join a mark, a joiner or an Arabic number sign with the space beside it, but not
# Latin letters, digits and ordinary punctuation. So a text is odd if it has one of the former
# beside a space, or a control or format character, which some drop.
_PLAIN = "\\x20-\\u02ff\\u2010-\\u2027"
_DROPPED = "\\x00-\\x08\\x0b\\x0c\\x0e-\\x1f\\x7f-\\x9f\\xad"
_DROPPED += "\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f\\ufeff"
_PRINTABLE = re.compile("[ -~]*")  # ASCII that is not odd
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
    """Encoder of many batches of sentences that caches their words.

    Args:
        backend: without truncation and padding.
    """

    def __init__(self, backend: Tokenizer) -> None:
        self.backend = backend
        self.word_rule = find_word_rule(backend)
        # Added tokens that take in spaces beside them; where a space is part of a token, any may.
        self.space_absorbing = []
        for token in backend.get_added_tokens_decoder().values():
            if self.word_rule != "apart" or token.lstrip or token.rstrip:
                self.space_absorbing.append(token.content)
        self._reset_cache()

    def _reset_cache(self) -> None:
        # Word number i has the tokens ids[ptr[i]:ptr[i + 1]].
        self.numbers: dict[str, int] = defaultdict(count().__next__)
        self.size = 0  # characters of all words
        self.ids = np.zeros(0, dtype=np.int32)  # [tokens]
        self.ptr = np.zeros(1, dtype=np.int64)  # [words + 1]

    def __call__(self, sentences: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Return ids end to end int32 [N], and tokens per sentence int64 [n].

        Equal to `backend.encode_batch(sentences, add_special_tokens=False)`.
        """
        if not self.word_rule or not sentences:
            return _encode(self.backend, sentences)
        if len(self.numbers) > _MOST_WORDS or self.size > _MOST_TEXT:
            self._reset_cache()

        # Plain sentences by their words, the others as they are.
        unsplit = np.array(self._find_unsplit(sentences))  # bool [n]
        plain_texts = [sentences[number] for number in np.flatnonzero(~unsplit)]
        other_texts = [sentences[number] for number in np.flatnonzero(unsplit)]
        plain_ids, plain_lengths = self._encode_words(plain_texts)
        other_ids, other_lengths = _encode(self.backend, other_texts)

        # Both one after the other; sentence i is at place[i] among them.
        ids = np.concatenate([plain_ids, other_ids])  # [N]
        lengths = np.concatenate([plain_lengths, other_lengths])  # [n]
        order = np.argsort(unsplit, kind="stable")  # [n]: plain ones are first
        place = np.argsort(order)
        first = np.cumsum(lengths) - lengths
        tokens = ranges(first[place], lengths=lengths[place])
        return ids[tokens], lengths[place]

    def _encode_words(self, sentences: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Encode sentences by their words; return as `_encode`."""
        if self.word_rule == "bytes":
            split: Callable[[str], list[str]] = _BYTE_WORD.findall
        else:
            split = methodcaller("split", " ")
        texts = [split(sentence) for sentence in sentences]
        words = self._look_up(list(chain.from_iterable(texts)))  # [p]
        begin = self.ptr[words]
        sizes = self.ptr[words + 1] - begin  # [p]: tokens per word

        # Add the tokens of each sentence's words up.
        last_word = np.cumsum([0, *map(len, texts)])  # [n + 1]
        tokens_before = np.append(0, np.cumsum(sizes))  # [p + 1]
        lengths = np.diff(tokens_before[last_word])  # [n]
        tokens = ranges(begin, lengths=sizes)
        return self.ids[tokens], lengths

    def _find_unsplit(self, sentences: list[str]) -> list[bool]:
        """Return for each sentence whether it must not be split into words."""
        if self.word_rule == "bytes":
            is_plain: Callable[[str], object] = str.isascii
            odd = _NOT_PLAIN
        else:
            is_plain = _PRINTABLE.fullmatch
            odd = _ODD
        # The quick test first: most sentences are plain.
        unsplit = [not s or not is_plain(s) and odd.search(s) is not None for s in sentences]

        # Those with a token that takes in spaces; most batches have none.
        joined = " ".join(sentences)
        for token in self.space_absorbing:
            if token in joined:
                for number, sentence in enumerate(sentences):
                    if token in sentence:
                        unsplit[number] = True
        return unsplit

    def _look_up(self, words: list[str]) -> np.ndarray:
        """Return the numbers of words, int64 [p]; encode new ones."""
        old_count = len(self.numbers)
        looked_up = map(self.numbers.__getitem__, words)  # which numbers new ones, too
        numbers = np.fromiter(looked_up, dtype=np.int64, count=len(words))
        new_count = len(self.numbers) - old_count
        if new_count:
            # Dictionaries keep their order: the new ones are its last.
            new = list(islice(reversed(self.numbers), new_count))
            new.reverse()
            self.size += sum(map(len, new))
            ids, lengths = self._learn(new)
            ends = self.ptr[-1] + np.cumsum(lengths)
            self.ids = np.concatenate([self.ids, ids])
            self.ptr = np.concatenate([self.ptr, ends])
        return numbers

    def _learn(self, words: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Encode each word separately, many per call as calls are costly; return as `_encode`."""
        # A line is words as of one text, which the tokenizer splits no further.
        lines = [words[first : first + _AT_ONCE] for first in range(0, len(words), _AT_ONCE)]
        ids = []  # per line: int32 [tokens]
        lengths = []  # per line: int64 [words]
        for batch in group(lines, size=_line_size, least=_ENCODED):
            with tokenizing():
                encodings = self.backend.encode_batch(
                    batch,
                    is_pretokenized=True,
                    add_special_tokens=False,
                )
            for line, encoding in zip(batch, encodings, strict=True):
                ids.append(np.array(encoding.ids, dtype=np.int32))
                owners = np.array(encoding.word_ids, dtype=np.int64)
                lengths.append(np.bincount(owners, minlength=len(line)))
        return np.concatenate(ids), np.concatenate(lengths)


def _encode(backend: Tokenizer, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Encode texts unsplit: return ids end to end int32 [N], and tokens per text int64 [n]."""
    ids = [np.zeros(0, dtype=np.int32)]
    lengths: list[int] = []
    for batch in group(texts, size=_size, least=_ENCODED):
        with tokenizing():
            encodings = backend.encode_batch_fast(batch, add_special_tokens=False)
        for encoding in encodings:
            ids.append(np.array(encoding.ids, dtype=np.int32))
            lengths.append(len(encoding))
    return np.concatenate(ids), np.array(lengths, dtype=np.int64)


def _size(text: str) -> int:
    """Return the bytes of a text, of which none has more than one token."""
    return len(text.encode())


def _line_size(words: list[str]) -> int:
    return sum(map(_size, words))


def find_word_rule(backend: Tokenizer) -> str:
    """Return how texts split into words whose tokens do not depend on the words around them.

    "apart": at spaces, which are dropped. "bytes": as GPT-2's and GPT-NeoX's tokenizers do, by
    `ByteLevel`. "": not known to do either.
    """
    try:
        steps = json.loads(backend.to_str())
    except Exception:  # a step that is written in Python
        return ""
    normalizers = _parts(steps["normalizer"], key="normalizers")
    splitters = _parts(steps["pre_tokenizer"], key="pretokenizers")
    first, *others = splitters or [{"type": None}]
    model = steps["model"]
    if model.get("dropout"):  # BPE that draws its merges
        return ""

    # As GPT-2: plain text is already in its normal form (NFC).
    if first["type"] == "ByteLevel" and first["use_regex"] and not first["add_prefix_space"]:
        leaves_plain = normalizers in ([], [{"type": "NFC"}])
        is_gpt2_like = leaves_plain and model["type"] == "BPE" and not others
        return "bytes" if is_gpt2_like else ""

    # As BERT and ALBERT: no step joins characters of two words.
    is_apart = (
        first["type"] in _SPLITTERS
        and all(map(_is_local, normalizers))
        and all(map(_stays_in_word, others))
        and not any(map(_crosses_words, steps["added_tokens"]))
    )
    return "apart" if is_apart else ""


def _crosses_words(token: _Step) -> bool:
    """Return whether an added token may take in a space, of the text or of its own."""
    if re.search(r"\s", token["content"]):
        return True
    return token["normalized"] and (token["lstrip"] or token["rstrip"])


def _parts(step: _Step | None, key: str) -> list[_Step]:
    """Return the steps of a sequence, or of one step."""
    if step is None:
        return []
    return step[key] if step["type"] == "Sequence" else [step]


def _is_local(normalizer: _Step) -> bool:
    """Return whether a normalizer changes no character because of the word before or after it."""
    if normalizer["type"] == "Replace":
        text = normalizer["pattern"].get("String", " ")  # or a Regex
        return bool(text) and not re.search(r"\s", text)
    return normalizer["type"] in _NORMALIZERS


def _stays_in_word(splitter: _Step) -> bool:
    if splitter["type"] == "Metaspace":
        return splitter["prepend_scheme"] in ("always", "never")
    return splitter["type"] in (*_SPLITTERS, "Punctuation", "Digits")
