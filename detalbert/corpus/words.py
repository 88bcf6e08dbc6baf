"""Token ids of texts, without offsets: every distinct word is encoded once.

Most tokenizers split a text at white space first, so a word has the same tokens everywhere, and a
corpus of gigabytes has some hundred thousand words: nearly all of its text is looked up. Used only
for tokenizers all of whose steps are known to treat words separately (`find_word_rule`); others
encode whole sentences.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from operator import methodcaller
from typing import Any, TypeVar

import numpy as np
from tokenizers import Tokenizer

from detalbert.squad.encoding import tokenizing

_MOST_WORDS = 1 << 17  # some 26 MB; beyond, the memory starts over
_MOST_TEXT = 1 << 23  # characters of these words
T = TypeVar("T")
_Step = dict[str, Any]  # a normalizer or pre-tokenizer, as tokenizer.json has it

_SPLITTERS = ("WhitespaceSplit", "Whitespace", "BertPreTokenizer")  # these drop white space
# Steps that change each character by itself, or a mark together with its base, or split words.
_LOCAL = {
    *"Precompiled NFC NFD NFKC NFKD StripAccents Lowercase BertNormalizer".split(),
    *_SPLITTERS,
    "Punctuation",
    "Digits",
}

# A normalizer may join a mark, a joiner or an Arabic number sign with the space beside it, but not
# Latin letters, digits and ordinary punctuation. So a text is odd if it has one of the former
# beside a space, or a control or format character, which some drop.
_PRINTABLE = re.compile("[ -~]*")  # ASCII that is not odd
_ODD = re.compile(
    r"(?:^| )[^\x20-\u02ff\u2010-\u2027]|[^\x20-\u02ff\u2010-\u2027](?:$| )"
    r"|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\xad\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]"
)

# Words as `tokenizers.pre_tokenizers.ByteLevel` finds them, in texts of ASCII, Latin letters and
# the dashes and quotation marks of U+2010..2027; Python's re knows no others as Unicode does.
_BYTE_WORD = re.compile(
    r"'(?:[stmd]|re|ve|ll)| ?[A-Za-zÀ-ÖØ-öø-ɏ]+| ?[0-9]+| ?[^\t-\r A-Za-zÀ-ÖØ-öø-ɏ0-9]+"
    r"|[\t-\r ]+(?![^\t-\r ])|[\t-\r ]+"
)
_NOT_PLAIN = re.compile(r"[^\x00-\x7fA-Za-zÀ-ÖØ-öø-ɏ\u2010-\u2027]")

# By rule: what splits a text, a quick test whether it may, and what it must not have to be split.
_Rule = tuple[Callable[[str], list[str]], Callable[[str], object], re.Pattern[str]]
_RULES: dict[str, _Rule] = {
    "apart": (methodcaller("split", " "), _PRINTABLE.fullmatch, _ODD),
    "bytes": (_BYTE_WORD.findall, str.isascii, _NOT_PLAIN),
}


class WordEncoder:
    """Encoder of many batches of texts that caches their words.

    Args:
        backend: without truncation and padding.
    """

    def __init__(self, backend: Tokenizer) -> None:
        self.backend = backend
        self.dtype = "<u2" if backend.get_vocab_size() <= 1 << 16 else "<u4"
        self.word_rule = find_word_rule(backend)
        # Some of these take in spaces beside them.
        added = backend.get_added_tokens_decoder().values()
        self.added_tokens = [token.content for token in added]
        self.memory: dict[str, list[int]] = {}  # tokens by word
        self.size = 0  # characters of all words

    def __call__(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Return ids end to end, uint16 or uint32 [N], and tokens per text, int64 [n].

        Equal to `backend.encode_batch(texts, add_special_tokens=False)`.
        """
        if len(self.memory) > _MOST_WORDS or self.size > _MOST_TEXT:
            self.memory.clear()
            self.size = 0
        words_of_texts = self._split(texts)
        new_words = list(set(chain.from_iterable(words_of_texts)) - self.memory.keys())
        with tokenizing():
            encodings = self.backend.encode_batch_fast(new_words, add_special_tokens=False)
        for word, encoding in zip(new_words, encodings, strict=True):
            self.memory[word] = encoding.ids
            self.size += len(word)

        # Join the tokens of each text's words.
        look_up = self.memory.__getitem__
        ids = [list(chain.from_iterable(map(look_up, words))) for words in words_of_texts]
        lengths = np.array(list(map(len, ids)), dtype=np.int64)  # [n]
        tokens = np.fromiter(chain.from_iterable(ids), dtype=self.dtype, count=lengths.sum())
        return tokens, lengths

    def _split(self, texts: list[str]) -> list[list[str]]:
        """Return the words of each text; a text that must not be split is one."""
        if not self.word_rule:
            return [[text] for text in texts]
        split, is_plain, odd = _RULES[self.word_rule]
        joined = " ".join(texts)
        added_tokens = [token for token in self.added_tokens if token in joined]  # mostly none
        words_of_texts = []
        for text in texts:
            # The quick test first: most texts are plain.
            is_odd = not is_plain(text) and odd.search(text)
            if is_odd or any(token in text for token in added_tokens):
                words_of_texts.append([text])
            else:
                words_of_texts.append(split(text))
        return words_of_texts


def group(items: Iterable[T], size: Callable[[T], int], least: int) -> Iterator[list[T]]:
    """Yield neighbours in lists of at least `least` in all, by the `size` of each; the last list
    may have less.
    """
    members: list[T] = []
    total = 0
    for item in items:
        members.append(item)
        total += size(item)
        if total >= least:
            yield members
            members = []
            total = 0
    if members:
        yield members


def byte_size(text: str) -> int:
    """Return the bytes of a text in UTF-8."""
    return len(text.encode())


def find_word_rule(backend: Tokenizer) -> str:
    """Return how texts split into words whose tokens do not depend on the words around them.

    "apart": at spaces, which are dropped. "bytes": as GPT-2's and GPT-NeoX's tokenizers do, by
    `ByteLevel`. "": not known to do either.
    """
    try:
        steps = json.loads(backend.to_str())
    except Exception:  # a step that is written in Python
        return ""
    normalizers = _parts(steps["normalizer"])
    first, *others = _parts(steps["pre_tokenizer"]) or [{"type": ""}]
    model = steps["model"]
    if model.get("dropout"):  # BPE that draws its merges
        return ""

    # As GPT-2: plain text is already in its normal form (NFC).
    if first["type"] == "ByteLevel" and first["use_regex"] and not first["add_prefix_space"]:
        leaves_plain = normalizers in ([], [{"type": "NFC"}])
        return "bytes" if leaves_plain and model["type"] == "BPE" and not others else ""

    # As BERT and ALBERT: no step joins characters of two words.
    is_apart = first["type"] in _SPLITTERS and all(map(_is_local, normalizers + others))
    return "apart" if is_apart and not any(map(_crosses_words, steps["added_tokens"])) else ""


def _parts(step: _Step | None) -> Any:
    """Return the steps of a sequence, or of one step."""
    if step is None:
        return []
    return step.get("normalizers", step.get("pretokenizers", [step]))


def _is_local(step: _Step) -> bool:
    """Return whether a step changes and joins no character because of the words around its own."""
    if step["type"] == "Replace":
        return " " not in step["pattern"].get("String", " ")  # or a Regex
    if step["type"] == "Metaspace":
        return step["prepend_scheme"] != "first"
    return step["type"] in _LOCAL


def _crosses_words(token: _Step) -> bool:
    """Return whether an added token takes in a space of the text that is not as it stands there."""
    return token["normalized"] and (token["lstrip"] or token["rstrip"] or " " in token["content"])
