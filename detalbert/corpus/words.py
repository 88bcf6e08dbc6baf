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
from itertools import chain, count
from operator import methodcaller
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from detalbert.squad.encoding import encode, ranges

_MOST_TOKENS = 1 << 19  # of the words, some 40 MB; beyond, the memory starts over
_Step = dict[str, Any]  # a normalizer or pre-tokenizer, as tokenizer.json has it

_SPLITTERS = ("WhitespaceSplit", "Whitespace", "BertPreTokenizer")  # these drop white space
# Steps that change each character by itself, or a mark together with its base, or split words.
_LOCAL = (
    "Precompiled NFC NFD NFKC NFKD StripAccents Lowercase BertNormalizer Punctuation Digits "
    "WhitespaceSplit Whitespace BertPreTokenizer"
).split()

# Words as `tokenizers.pre_tokenizers.ByteLevel` finds them, in texts of ASCII, Latin letters and
# the dashes and quotation marks of U+2010..2027; Python's re knows no others as Unicode does.
_BYTE_WORD = re.compile(
    r"'(?:[stmd]|re|ve|ll)| ?[A-Za-zÀ-ÖØ-öø-ɏ]+| ?[0-9]+| ?[^\t-\r A-Za-zÀ-ÖØ-öø-ɏ0-9]+"
    r"|[\t-\r ]+(?![^\t-\r ])|[\t-\r ]+"
)
# A normalizer may join a mark, a joiner or an Arabic number sign with the space beside it, but it
# leaves Latin letters, digits and ordinary punctuation. Some drop control and format characters.
_PLAIN = r" -~\xa0-\xac\xae-\u02ff\u2010-\u2027"
_DROPPED = r"\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\xad\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff"
# By rule: what a text that may be split has nowhere, and how it is split.
_RULES: dict[str, tuple[re.Pattern[str], Callable[[str], list[str]]]] = {
    "apart": (
        re.compile(rf"(?s:[^{_PLAIN}](?:(?<=[{_DROPPED}])|(?<=\A.)|(?<= .)|(?= |\Z)))"),
        methodcaller("split", " "),
    ),
    "bytes": (re.compile(r"[^\x00-\x7fÀ-ÖØ-öø-ɏ\u2010-\u2027]"), _BYTE_WORD.findall),
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
        self._reset_cache()

    def _reset_cache(self) -> None:
        # Word number i has the tokens ids[ptr[i]:ptr[i + 1]].
        self.numbers: dict[str, int] = defaultdict(count().__next__)
        self.ids = np.zeros(0, dtype=self.dtype)  # [tokens]
        self.ptr = np.zeros(1, dtype=np.int64)  # [words + 1]

    def __call__(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Return ids end to end, uint16 or uint32 [N], and tokens per text, int64 [n].

        Equal to `backend.encode_batch(texts, add_special_tokens=False)`.
        """
        if len(self.ids) > _MOST_TOKENS:
            self._reset_cache()
        words_of_texts = self._split(texts)
        words = self._look_up(list(chain.from_iterable(words_of_texts)))  # [W]
        begin = self.ptr[words]
        sizes = self.ptr[words + 1] - begin  # [W]: tokens per word

        # Add the tokens of each text's words up.
        last_word = np.cumsum([0, *map(len, words_of_texts)])  # [n + 1]
        tokens_before = np.append(0, np.cumsum(sizes))  # [W + 1]
        lengths = np.diff(tokens_before[last_word])  # [n]
        return self.ids[ranges(begin, lengths=sizes)], lengths

    def _split(self, texts: list[str]) -> list[list[str]]:
        """Return the words of each text; a text that must not be split is one."""
        joined = " ".join(texts)
        if not self.word_rule or any(token in joined for token in self.added_tokens):
            return [[text] for text in texts]
        odd, split = _RULES[self.word_rule]
        return [[text] if odd.search(text) else split(text) for text in texts]

    def _look_up(self, words: list[str]) -> np.ndarray:
        """Return the numbers of words, int64 [W]; encode new ones."""
        old_count = len(self.numbers)
        looked_up = map(self.numbers.__getitem__, words)  # which numbers new ones, too
        numbers = np.fromiter(
            looked_up,
            dtype=np.int64,
            count=len(words),
        )
        # Dictionaries keep their order: the new ones are its last.
        new_words = list(self.numbers)[old_count:]
        tokens = encode(
            self.backend,
            new_words,
            with_offsets=False,
        )
        self.ptr = np.append(self.ptr, self.ptr[-1] + tokens.ptr[1:])
        self.ids = np.append(self.ids, tokens.ids.astype(self.dtype))
        return numbers


def find_word_rule(backend: Tokenizer) -> str:
    """Return how texts split into words whose tokens do not depend on the words around them.

    "apart": at spaces, which are dropped. "bytes": as GPT-2's and GPT-NeoX's tokenizers do, by
    `ByteLevel`. "": not known to do either.
    """
    steps = json.loads(backend.to_str())
    normalizers = _parts(steps["normalizer"])
    splitters = _parts(steps["pre_tokenizer"])
    if not splitters or steps["model"].get("dropout"):  # BPE that draws its merges
        return ""

    # As GPT-2: plain text is already in its normal form (NFC).
    first = splitters[0]
    if first["type"] == "ByteLevel":
        is_gpt2 = len(splitters) == 1 and first["use_regex"] and not first["add_prefix_space"]
        leaves_plain = normalizers in ([], [{"type": "NFC"}])
        return "bytes" if is_gpt2 and leaves_plain and steps["model"]["type"] == "BPE" else ""

    # As BERT and ALBERT: no step joins characters of two words.
    if first["type"] in _SPLITTERS and all(map(_is_local, normalizers + splitters)):
        return "" if any(map(_crosses_words, steps["added_tokens"])) else "apart"
    return ""


def _parts(step: _Step | None) -> Any:
    """Return the steps of a sequence, or of one step."""
    return step.get("normalizers", step.get("pretokenizers", [step])) if step else []


def _is_local(step: _Step) -> bool:
    """Return whether a step changes and joins no character because of the words around its own."""
    if step["type"] == "Replace":
        pattern = step["pattern"].get("String", "")  # or a Regex
        return pattern.split() == [pattern]
    return step["type"] in _LOCAL or step.get("prepend_scheme") in ("always", "never")


def _crosses_words(token: _Step) -> bool:
    """Return whether an added token takes in a space of the text that is not as it stands there."""
    return token["normalized"] and (token["lstrip"] or token["rstrip"] or " " in token["content"])
