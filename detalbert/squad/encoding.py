"""Texts -> token ids and character offsets, as flat arrays.

Most tokenizers of encoders split a text at white space before they look for pieces, so a word has
the same pieces everywhere, and a data set has far fewer distinct words than words. `encode`
tokenizes every distinct word once and joins the results with array operations. It does so only
where every part of the tokenizer is known to treat words one by one (`treats_words_apart`) and a
sample of texts agrees with the ordinary call; otherwise it makes the ordinary call.

Shapes: N tokens of n texts; W distinct words; places are the words of all texts, with repeats.
"""

import json
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import chain, count
from typing import Any, NamedTuple

import numpy as np

_CHUNK = 2000  # texts at a time; bounds the memory of the encoding objects
_LINE = 8000  # characters of a line of distinct words
_FEW = 2  # a question and its context
_SAMPLE = 16  # texts that are encoded both ways

# These normalizers change each character by itself, or a mark together with its base.
_NORMALIZERS: tuple[str, ...] = ("Precompiled",)
_NORMALIZERS += ("NFC", "NFD", "NFKC", "NFKD", "StripAccents", "Lowercase", "BertNormalizer")
_SPLITTERS = ("WhitespaceSplit", "Whitespace", "BertPreTokenizer")  # these drop white space
_POST_PROCESSORS = ("TemplateProcessing", "BertProcessing")  # these leave offsets alone

# A normalizer may join a mark, a joiner or an Arabic number sign with the space beside it, but not
# Latin letters, digits and ordinary punctuation. "Precompiled" counts characters wrongly after it
# drops one. So a text is odd if it has one of the former beside a space, or a control or format
# character.
_PLAIN = "\\x20-\\u02ff\\u2010-\\u2027"
_DROPPED = "\\x00-\\x08\\x0b\\x0c\\x0e-\\x1f\\x7f-\\x9f\\xad"
_DROPPED += "\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f\\ufeff"
ODD = re.compile(f"(?:^| )[^{_PLAIN}]|[^{_PLAIN}](?:$| )|[{_DROPPED}]")


class Tokens(NamedTuple):
    """The N tokens of n texts, one text after another."""

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
    # For few texts, looking at the tokenizer takes as long as they do.
    if len(texts) <= _FEW or not treats_words_apart(backend):
        return encode_whole(backend, texts)
    sample = texts[:: max(1, len(texts) // _SAMPLE)][:_SAMPLE]
    pairs = zip(_encode_words(backend, sample), encode_whole(backend, sample), strict=True)
    if not all(np.array_equal(a, b) for a, b in pairs):
        return encode_whole(backend, texts)
    return _encode_words(backend, texts)


def treats_words_apart(backend: Any) -> bool:
    """Whether it is known that the tokens of a word do not depend on the words around it."""
    return _takes_apart(backend, lambda first: first["type"] in _SPLITTERS)


def marks_words(backend: Any) -> bool:
    """Whether the same is known where a token holds the space before its word (Metaspace alone),
    for printable ASCII with one space between words and none of the added tokens."""

    def by_metaspace(first: dict[str, Any]) -> bool:
        always = first.get("prepend_scheme") == "always"
        return first["type"] == "Metaspace" and always and first.get("split", True)

    normalizers = _state(backend.normalizer)
    replaced = [part.get("content") or "" for part in _parts(normalizers, "normalizers")]
    return not any(map(re.compile(r"\s").search, replaced)) and _takes_apart(backend, by_metaspace)


def _takes_apart(backend: Any, splits: Callable[[dict[str, Any]], bool]) -> bool:
    """Args: splits: whether the first pre-tokenizer splits a text at white space."""
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
    """The type and settings of a part of a tokenizer; type "unknown" if it is written in Python."""
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
    """The tokens as the tokenizer's own `encode_batch` gives them, _CHUNK texts at a time."""
    ids, lengths, offsets = [np.zeros(0, np.int32)], [0], [np.zeros((0, 2), np.int32)]
    for at in range(0, len(texts), _CHUNK):
        encodings = _encodings(backend, texts[at : at + _CHUNK])
        lengths += [len(encoding) for encoding in encodings]
        ids.append(np.fromiter(chain.from_iterable(e.ids for e in encodings), np.int32))
        pairs = chain.from_iterable(chain.from_iterable(e.offsets for e in encodings))
        offsets.append(np.fromiter(pairs, np.int32).reshape(-1, 2))
    return Tokens(np.concatenate(ids), np.cumsum(lengths, dtype=np.int64), np.concatenate(offsets))


def _encodings(backend: Any, texts: Sequence[str]) -> list[Any]:
    """`encode_batch` has threads of its own; few texts are done before those wake up."""
    if len(texts) <= _FEW:
        return [backend.encode(text, add_special_tokens=False) for text in texts]
    return backend.encode_batch(texts, add_special_tokens=False)


def _encode_words(backend: Any, texts: Sequence[str]) -> Tokens:
    """As `encode_whole`, for at least one text and a backend that `treats_words_apart`."""
    words, odd, places, ptr = _number_words(backend, texts)
    tokens = encode_distinct(backend, words, odd)
    sizes = np.fromiter(map(len, words), np.int64, len(words)) + 1  # [W], with the space after it
    chunks = []
    for at in range(0, len(texts), _CHUNK):
        part = ptr[at : at + _CHUNK + 1]
        chunks.append(_join_words(tokens, sizes, places[part[0] : part[-1]], part - part[0]))
    ids, counts, offsets = map(np.concatenate, zip(*chunks, strict=True))  # [N], [n], [N, 2]
    return Tokens(ids, np.append(0, np.cumsum(counts)), offsets)


def _number_words(
    backend: Any, texts: Sequence[str]
) -> tuple[list[str], np.ndarray, np.ndarray, np.ndarray]:
    """Splits texts at ASCII spaces. The text between two spaces is a word, even if it is empty, so
    a word's first character follows from the lengths of the words before it.

    A text with something odd beside a space is not split: it is one long word.
    Returns: the W distinct words; which of them are odd, bool [W]; the number of the word at every
        place, int32 [places]; text i has places ptr[i]:ptr[i + 1], int64 [n + 1].
    """
    added = backend.get_added_tokens_decoder().values()
    greedy = [token.content for token in added if _strips(token)]  # these hold spaces beside them
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
    """The tokens of every word; offsets count from the word's first character.

    Words that are not odd share lines, since every call has a cost. A token that holds the space
    before its word (`marks_words`) begins at -1.
    """
    size = np.fromiter(map(len, words), np.int64, len(words)) + 1
    begin = np.cumsum(size) - size  # [W], the word's first character in " ".join(words)
    new_line = np.diff(begin // _LINE, prepend=-1) > 0
    new_line |= odd | np.append(False, odd[:-1])
    first = np.flatnonzero(new_line)  # [lines], the first word of each
    spans = zip(first, [*first[1:], len(words)], strict=True)
    tokens = encode_whole(backend, [" ".join(words[a:b]) for a, b in spans])
    shift = np.repeat(begin[first], np.diff(tokens.ptr))  # [N], where the token's line begins
    # The word of each token, [N]; a token at the space before a word belongs to that word.
    owner = np.searchsorted(begin - 1, tokens.offsets[:, 0] + shift, side="right") - 1
    offsets = tokens.offsets + (shift - begin[owner])[:, None]  # [N, 2]
    ptr = np.searchsorted(owner, np.arange(len(words) + 1))  # [W + 1]
    return Tokens(tokens.ids, ptr, offsets.astype(np.int32))


def _join_words(
    words: Tokens, sizes: np.ndarray, places: np.ndarray, ptr: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ids [N], tokens per text [n] and offsets [N, 2] of texts that have at least one word each.

    "the cat" and "the" are places [0, 1, 0] with ptr [0, 2, 3]. "the" has the token 7, "cat" the
    tokens 4 5 with offsets (0, 2) (2, 3); with a space both words have size 4. The words start at
    characters [0, 4, 0], so the ids are 7 4 5 7, the counts [3, 1] and the offsets (0, 3) (4, 6)
    (6, 7) (0, 3).

    Args: words: the tokens of the distinct words; sizes [W]: characters and a space; places, ptr:
        as of `_number_words`.
    """
    size = sizes[places]  # [places]
    start = np.cumsum(size) - size
    start -= np.repeat(start[ptr[:-1]], np.diff(ptr))  # [places], the word's first character
    count = np.diff(words.ptr)[places]  # [places], tokens
    take = ranges(words.ptr[places], count)  # [N]
    offsets = words.offsets[take] + np.repeat(start.astype(np.int32), count)[:, None]
    return words.ids[take], np.add.reduceat(count, ptr[:-1]), offsets
