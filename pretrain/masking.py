"""N-gram masking of whole words, as Lan et al. 2020 (arXiv:1909.11942, section 3.1).

Up to `max_ngram` whole words in a row are hidden together, n of them with a probability
proportional to 1 / n, until 15 % of the text's tokens are. Of these 80 % become [MASK], 10 % a
random piece, and 10 % stay as they are.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

AS_MASK, AS_RANDOM = 0.8, 0.1


class Vocabulary(NamedTuple):
    """What masking has to know of a tokenizer."""

    starts_word: np.ndarray  # bool [V]
    lettered: np.ndarray  # bool [V]: holds a letter or a digit
    ordinary: np.ndarray  # int64: every piece that is not special
    mask: int
    cls: int
    sep: int


def read_vocabulary(tokenizer: Any) -> Vocabulary:
    """Of a fast tokenizer with [MASK], [CLS] and [SEP] pieces of some name.

    A piece starts a word when it is marked so ('▁', 'Ġ'; with WordPiece: not marked '##') or holds
    neither letter nor digit, as punctuation is a word of its own.
    """
    size = len(tokenizer)
    pieces = [str(piece) for piece in tokenizer.convert_ids_to_tokens(list(range(size)))]
    wordpiece = any(piece.startswith("##") for piece in pieces)
    lettered = np.array([any(map(str.isalnum, piece)) for piece in pieces])

    def starts(piece: str) -> bool:
        return not piece.startswith("##") if wordpiece else piece[0] in "▁Ġ"

    special = np.zeros(size, bool)
    special[tokenizer.all_special_ids] = True
    ids = tokenizer.mask_token_id, tokenizer.cls_token_id, tokenizer.sep_token_id
    begin = ~lettered | np.array([starts(piece) for piece in pieces])
    return Vocabulary(begin, lettered & ~special, np.flatnonzero(~special), *ids)


def find_words(
    segments: Sequence[np.ndarray], vocabulary: Vocabulary
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """First token, token after the last, and segment of every word, int64 [W] each.

    Args: segments: token ids, counted end to end. A segment's first token always starts a word.
    """
    begins, ends, owners, at = [], [], [], 0
    for number, ids in enumerate(segments):
        starts = vocabulary.starts_word[ids]
        starts[:1] = True
        begin = np.flatnonzero(starts)
        begins.append(begin + at)
        ends.append(np.append(begin[1:], len(ids))[: len(begin)] + at)
        owners.append(np.full(len(begin), number))
        at += len(ids)
    return np.concatenate(begins), np.concatenate(ends), np.concatenate(owners)


def choose_tokens(
    words: tuple[np.ndarray, np.ndarray, np.ndarray],
    fraction: float,
    max_ngram: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """Which tokens to hide, ascending, int64: whole words, n-grams within one segment.

    As many as the rate says, or a few less where the next word is too long; at least one word.
    An n-gram that would hide more than is left, or leave its segment, is shortened; one that
    meets another is passed over.
    """
    begins, ends, owners = (column.tolist() for column in words)
    count = len(begins)
    left = max(1, round(fraction * ends[-1]))
    sizes = np.arange(1, max_ngram + 1)
    chance = np.cumsum(1 / sizes)
    drawn = np.searchsorted(chance, rng.random(count) * chance[-1], side="right") + 1
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
        chosen.append(np.arange(begins[word], ends[word]))
    return np.sort(np.concatenate(chosen))


def corrupt(ids: np.ndarray, vocabulary: Vocabulary, rng: np.random.Generator) -> np.ndarray:
    """What the model sees in the place of hidden tokens `ids`, int64 [M]."""
    dice = rng.random(len(ids))
    random = vocabulary.ordinary[rng.integers(len(vocabulary.ordinary), size=len(ids))]
    shown = np.where(dice < AS_MASK, vocabulary.mask, ids)
    return np.where((dice >= AS_MASK) & (dice < AS_MASK + AS_RANDOM), random, shown)
