"""Texts -> token ids and character offsets, as flat arrays.

Most tokenizers of encoders take a text apart at white space before they look for pieces, so a word
has the same pieces wherever it stands, and a data set has far fewer words than occurrences of them:
`encode` has every distinct word encoded once and puts the texts together with array operations. It
does so only for tokenizers whose parts are known to treat words apart from one another
(`treats_words_apart`), and compares a sample with the ordinary call; all others get that call.
"""

import json
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import chain, count
from typing import Any, NamedTuple

import numpy as np

_CHUNK = 2000  # texts at a time; bounds the memory that encoding objects take
_LINE = 8000  # characters of the lines that distinct words are encoded in
_SAMPLE = 16  # texts that are encoded both ways

# Normalizers that change each character by itself, or marks that stand with their base.
_NORMALIZERS = ("NFC", "NFD", "NFKC", "NFKD", "StripAccents", "Lowercase", "BertNormalizer")
_NORMALIZERS += ("Precompiled",)
_SPLITTERS = ("WhitespaceSplit", "Whitespace", "BertPreTokenizer")  # these drop white space
_POST_PROCESSORS = ("TemplateProcessing", "BertProcessing")  # these leave offsets alone

# A normalizer may take a mark, a joiner or an Arabic number sign together with the space beside it;
# Latin letters, digits and ordinary punctuation are none of these. And "Precompiled" loses count of
# characters where it drops one, so texts with control or format characters are left whole.
_PLAIN = "\\x20-\\u02ff\\u2010-\\u2027"
_DROPPED = "\\x00-\\x08\\x0b\\x0c\\x0e-\\x1f\\x7f-\\x9f\\xad"
_DROPPED += "\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f\\ufeff"
ODD = re.compile(f"(?:^| )[^{_PLAIN}]|[^{_PLAIN}](?:$| )|[{_DROPPED}]")


class Tokens(NamedTuple):
    """The tokens of n texts, N in all, one text after another."""

    ids: np.ndarray  # int32 [N]
    ptr: np.ndarray  # int64 [n + 1], text i is ids[ptr[i]:ptr[i + 1]]
    offsets: np.ndarray  # int32 [N, 2], characters of the text, half open


def ranges(begins: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """begins[i], begins[i] + 1, ... for lengths[i] numbers, for every i; int64.

    begins [7, 3], lengths [2, 3] gives [7, 8, 3, 4, 5].
    """
    ends = np.cumsum(lengths, dtype=np.int64)
    total = int(ends[-1]) if len(ends) else 0
    return np.repeat(begins - ends + lengths, lengths) + np.arange(total)


def encode(backend: Any, texts: Sequence[str]) -> Tokens:
    """What `backend.encode_batch(texts, add_special_tokens=False)` gives, token for token.

    Args: backend: a `tokenizers.Tokenizer` without truncation and padding.
    """
    if not texts or not treats_words_apart(backend):
        return encode_whole(backend, texts)
    sample = texts[:: max(1, len(texts) // _SAMPLE)][:_SAMPLE]
    pairs = zip(_encode_words(backend, sample), encode_whole(backend, sample), strict=True)
    if not all(np.array_equal(a, b) for a, b in pairs):
        return encode_whole(backend, texts)
    return _encode_words(backend, texts)


def treats_words_apart(backend: Any) -> bool:
    """Whether the tokens of a word are known not to depend on the words around it."""
    return _takes_apart(backend, lambda first: first["type"] in _SPLITTERS)


def marks_words(backend: Any) -> bool:
    """Whether that is known of words with one space between them, where the space is part of a
    token (Metaspace alone): for printable ASCII that holds none of the added tokens."""

    def by_metaspace(first: dict[str, Any]) -> bool:
        always = first.get("prepend_scheme") == "always"
        return first["type"] == "Metaspace" and always and first.get("split", True)

    normalizers = _state(backend.normalizer)
    replaced = [part.get("content") or "" for part in _parts(normalizers, "normalizers")]
    return not any(map(re.compile(r"\s").search, replaced)) and _takes_apart(backend, by_metaspace)


def _takes_apart(backend: Any, splits: Callable[[dict[str, Any]], bool]) -> bool:
    """Args: splits: whether the first pre-tokenizer takes a text apart at white space."""
    states = [
        _state(p) for p in (backend.normalizer, backend.pre_tokenizer, backend.post_processor)
    ]
    normalizers, splitters = _parts(states[0], "normalizers"), _parts(states[1], "pretokenizers")
    return (
        not getattr(backend.model, "dropout", None)  # BPE that draws its merges
        and all(_is_local(part) for part in normalizers)
        and splits(splitters[0])
        and all(
            part["type"] in (*_SPLITTERS, "Punctuation", "Digits")
            or (part["type"] == "Metaspace" and part["prepend_scheme"] in ("always", "never"))
            for part in splitters[1:]
        )
        and states[2]["type"] in (*_POST_PROCESSORS, None)
        and not any(
            re.search(r"\s", token.content) or (_strips(token) and token.normalized)
            for token in backend.get_added_tokens_decoder().values()
        )
    )


def _state(part: Any) -> dict[str, Any]:
    """What a part of a tokenizer is; of one written in Python, that it is unknown."""
    try:
        return {"type": None} if part is None else json.loads(part.__getstate__())
    except Exception:
        return {"type": "unknown"}


def _parts(state: dict[str, Any], key: str) -> list[dict[str, Any]]:
    return state[key] if state["type"] == "Sequence" and state[key] else [state]


def _is_local(normalizer: dict[str, Any]) -> bool:
    if normalizer["type"] == "Replace":
        text = normalizer["pattern"].get("String", " ")  # or a Regex
        return bool(text) and not re.search(r"\s", text)
    return normalizer["type"] in (*_NORMALIZERS, None)


def _strips(token: Any) -> bool:
    return token.lstrip or token.rstrip


def encode_whole(backend: Any, texts: Sequence[str]) -> Tokens:
    """The ordinary call, some texts at a time."""
    ids, lengths, offsets = [np.zeros(0, np.int32)], [0], [np.zeros((0, 2), np.int32)]
    for at in range(0, len(texts), _CHUNK):
        encodings = backend.encode_batch(texts[at : at + _CHUNK], add_special_tokens=False)
        lengths += [len(encoding) for encoding in encodings]
        ids.append(np.fromiter(chain.from_iterable(e.ids for e in encodings), np.int32))
        pairs = chain.from_iterable(chain.from_iterable(e.offsets for e in encodings))
        offsets.append(np.fromiter(pairs, np.int32).reshape(-1, 2))
    return Tokens(np.concatenate(ids), np.cumsum(lengths, dtype=np.int64), np.concatenate(offsets))


def _encode_words(backend: Any, texts: Sequence[str]) -> Tokens:
    """As `encode_whole`, for at least one text and a backend that `treats_words_apart`."""
    words, odd, word_of, ptr = _number_words(backend, texts)
    alone = encode_distinct(backend, words, odd)
    characters = np.fromiter(map(len, words), np.int64, len(words)) + 1  # and the space after it
    chunks = []
    for at in range(0, len(texts), _CHUNK):
        part = ptr[at : at + _CHUNK + 1]
        chunks.append(_assemble(alone, characters, word_of[part[0] : part[-1]], part - part[0]))
    ids, lengths, offsets = map(np.concatenate, zip(*chunks, strict=True))
    return Tokens(ids, np.append(0, np.cumsum(lengths)), offsets)


def _number_words(
    backend: Any, texts: Sequence[str]
) -> tuple[list[str], np.ndarray, np.ndarray, np.ndarray]:
    """Takes texts apart at ASCII spaces; what stands between two is a word, the empty string too,
    so that the character where a word begins follows from the lengths of those before it.

    A text that has something odd beside a space is not taken apart, but one long word.
    Returns: the distinct words; which of them are odd, bool [words]; the word at every place of
        the texts, int32 [places]; the places of each text, as int64 [n + 1].
    """
    added = backend.get_added_tokens_decoder().values()
    greedy = [token.content for token in added if _strips(token)]  # take in spaces beside them
    number: dict[str, int] = defaultdict(count().__next__)
    places, counts, odd = [], [0], []
    for text in texts:
        words = text.split(" ")
        ordinary = (text.isascii() and text.isprintable()) or not ODD.search(text)
        if not ordinary or any(token in text for token in greedy):
            words = [text]
            odd.append(number[text])
        places.append(np.fromiter(map(number.__getitem__, words), np.int32, len(words)))
        counts.append(len(words))
    is_odd = np.zeros(len(number), bool)
    is_odd[odd] = True
    return list(number), is_odd, np.concatenate(places), np.cumsum(counts, dtype=np.int64)


def encode_distinct(backend: Any, words: list[str], odd: np.ndarray) -> Tokens:
    """The tokens of every word. Words that are not odd share lines, since every call has a cost.

    Where a token holds the space before its word (`marks_words`), so do its offsets.
    """
    size = np.fromiter(map(len, words), np.int64, len(words)) + 1
    begin = np.cumsum(size) - size  # of each word in all of them in a row
    new_line = np.diff(begin // _LINE, prepend=-1) > 0
    new_line |= odd | np.append(False, odd[:-1])
    first = np.flatnonzero(new_line)  # the word that begins each line
    spans = zip(first, [*first[1:], len(words)], strict=True)
    tokens = encode_whole(backend, [" ".join(words[a:b]) for a, b in spans])
    shift = np.repeat(begin[first], np.diff(tokens.ptr))  # [N], of each token's line
    # The space before a word goes with it, where there are tokens that hold it.
    owner = np.searchsorted(begin - 1, tokens.offsets[:, 0] + shift, side="right") - 1
    offsets = tokens.offsets + (shift - begin[owner])[:, None]
    ptr = np.searchsorted(owner, np.arange(len(words) + 1))
    return Tokens(tokens.ids, ptr, offsets.astype(np.int32))


def _assemble(
    alone: Tokens, characters: np.ndarray, word: np.ndarray, ptr: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ids, tokens per text and offsets of some texts, of which none is without a word.

    Args: alone: the tokens of every distinct word; characters: of every distinct word and the
        space after it; word: number of the word at every place; ptr: where texts begin in it.
    """
    size = characters[word]
    start = np.cumsum(size) - size
    start -= np.repeat(start[ptr[:-1]], np.diff(ptr))  # [places], the word's first character
    tokens = np.diff(alone.ptr)[word]
    take = ranges(alone.ptr[word], tokens)
    offsets = alone.offsets[take] + np.repeat(start.astype(np.int32), tokens)[:, None]
    return alone.ids[take], np.add.reduceat(tokens, ptr[:-1]), offsets
