"""N-gram masking of whole words, as in Lan et al. 2020 (arXiv:1909.11942, section 3.1).

Up to `max_ngram` words in a row are masked together, n of them with a probability proportional to
1 / n. [MASK] replaces 80 % of the masked tokens, a random token 10 %; the others are unchanged.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

AS_MASK, AS_RANDOM = 0.8, 0.1


class Vocabulary(NamedTuple):
    """Properties of a tokenizer's V tokens that masking uses."""

    starts_word: np.ndarray  # bool [V]
    lettered: np.ndarray  # bool [V]: holds a letter or a digit
    ordinary: np.ndarray  # int64: every piece that is not special
    mask: int
    cls: int
    sep: int


def read_vocabulary(tokenizer: Any) -> Vocabulary:
    """Return the vocabulary of a fast tokenizer. A token starts a word if its mark says so ('▁',
    'Ġ'; with WordPiece: no '##'), or if it holds neither letter nor digit.
    """
    size = len(tokenizer)
    pieces = [str(piece) for piece in tokenizer.convert_ids_to_tokens(list(range(size)))]
    wordpiece = any(piece.startswith("##") for piece in pieces)
    lettered = np.array([any(map(str.isalnum, piece)) for piece in pieces])
    starts = [not p.startswith("##") if wordpiece else p[0] in "▁Ġ" for p in pieces]
    special = np.zeros(size, bool)
    special[tokenizer.all_special_ids] = True
    ids = tokenizer.mask_token_id, tokenizer.cls_token_id, tokenizer.sep_token_id
    starts_word = ~lettered | np.array(starts)
    return Vocabulary(starts_word, lettered & ~special, np.flatnonzero(~special), *ids)


def find_words(
    segments: Sequence[np.ndarray], vocabulary: Vocabulary
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return first token, token after the last, and segment of each word, int64 [W] each: [0 2 3
    4], [2 3 4 5] and [0 0 1 1] for ▁un able ▁to | able ▁is. A segment's first token starts a word.
    """
    ids = np.concatenate(segments)  # [T]
    owners = np.repeat(np.arange(len(segments)), [len(segment) for segment in segments])  # [T]
    starts = vocabulary.starts_word[ids] | (np.diff(owners, prepend=-1) > 0)  # [T]
    begins = np.flatnonzero(starts)
    return begins, np.append(begins, len(ids))[1:], owners[begins]


def choose_tokens(
    words: tuple[np.ndarray, np.ndarray, np.ndarray],
    fraction: float,
    max_ngram: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """Return the tokens to mask, ascending, int64 [M]: whole words, n-grams within one segment.

    M is `fraction` of all tokens, or a few fewer if the next word is too long, but at least one
    word. An n-gram that would exceed M, or leave its segment, is shortened; one that overlaps
    another is skipped. `words` are as `find_words` returns them, at least one.
    """
    begins, ends, owners = (column.tolist() for column in words)
    count = len(begins)
    left = max(1, round(fraction * ends[-1]))  # tokens still to hide
    chance = np.cumsum(1 / np.arange(1, max_ngram + 1))  # [max_ngram]: 1, 1.5, 1.83
    drawn = np.searchsorted(chance, rng.random(count) * chance[-1], side="right") + 1  # [W]: n
    hidden = [False] * count
    chosen = []
    for word, n in zip(rng.permutation(count).tolist(), drawn.tolist(), strict=True):
        last = min(word + n, count) - 1
        while last >= word and (owners[last] != owners[word] or ends[last] - begins[word] > left):
            last -= 1
        if last < word or any(hidden[word : last + 1]):
            continue
        hidden[word : last + 1] = [True] * (last + 1 - word)
        chosen.append(np.arange(begins[word], ends[last]))
        left -= ends[last] - begins[word]
        if left <= 0:
            break
    if not chosen:
        word = int(np.argmin(words[1] - words[0]))
        return np.arange(begins[word], ends[word])
    return np.sort(np.concatenate(chosen))


def corrupt(ids: np.ndarray, vocabulary: Vocabulary, rng: np.random.Generator) -> np.ndarray:
    """Return the model's input in place of the masked tokens `ids`; both int64 [M]."""
    dice = rng.random(len(ids))
    random = vocabulary.ordinary[rng.integers(len(vocabulary.ordinary), size=len(ids))]
    shown = np.where(dice < AS_MASK, vocabulary.mask, ids)
    return np.where((dice >= AS_MASK) & (dice < AS_MASK + AS_RANDOM), random, shown)
