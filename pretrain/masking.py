"""N-gram masking of whole words, as in Lan et al. 2020 (arXiv:1909.11942, section 3.1).

Up to `max_ngram` words in a row are masked together, n of them with a probability proportional to
1 / n. [MASK] replaces 80 % of the masked tokens, a random token 10 %; the others are unchanged.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from tokenizers.decoders import ByteLevel
from transformers import PreTrainedTokenizerBase

from detalbert.squad.encoding import pair_layout

# Shares of the masked tokens that [MASK] and a random token replace.
AS_MASK = 0.8
AS_RANDOM = 0.1


class Vocabulary(NamedTuple):
    """Properties of a tokenizer's V tokens that masking uses."""

    starts_word: np.ndarray  # bool [V]
    lettered: np.ndarray  # bool [V]: holds a letter or a digit
    ordinary: np.ndarray  # int64: every token that is not special
    mask: int
    # Special tokens before, between and behind two segments; a single one has no `middle`.
    prefix: np.ndarray
    middle: np.ndarray
    suffix: np.ndarray


class Words(NamedTuple):
    """The W words of one or two segments."""

    begins: np.ndarray  # int64 [W]: first token
    ends: np.ndarray  # int64 [W]: token after the last
    segments: np.ndarray  # int64 [W]


def read_vocabulary(tokenizer: PreTrainedTokenizerBase) -> Vocabulary:
    """Return the vocabulary of a fast tokenizer. A token starts a word if its mark says so ('▁',
    'Ġ'; with WordPiece: no '##'), or if it holds neither letter nor digit.
    """
    ids = list(range(len(tokenizer)))
    tokens = tokenizer.convert_ids_to_tokens(ids)
    backend = tokenizer.backend_tokenizer
    # WordPiece marks what continues a word; others mark what begins one.
    continuing = getattr(backend.model, "continuing_subword_prefix", None)
    lettered = np.zeros(len(ids), bool)  # [V]
    marked = np.zeros(len(ids), bool)  # [V]
    for number, token in enumerate(tokens):
        text = token
        if isinstance(backend.decoder, ByteLevel):
            # Its tokens spell bytes; part of a character is no punctuation.
            text = backend.decoder.decode([token]).replace("\ufffd", "a")
        lettered[number] = any(map(str.isalnum, text))
        if continuing:
            marked[number] = not token.startswith(continuing)
        else:
            marked[number] = token.startswith(("▁", "Ġ"))
    special = np.isin(ids, tokenizer.all_special_ids)  # [V]

    # [CLS] A [SEP] B [SEP], or as the tokenizer has it: <s> A </s></s> B </s>.
    prefix = np.array([tokenizer.cls_token_id])
    middle = suffix = np.array([tokenizer.sep_token_id])
    if tokenizer.num_special_tokens_to_add(pair=True):
        layout = pair_layout(tokenizer)
        bounds = np.cumsum(layout.lengths[[0, 2]])
        prefix, middle, suffix = np.split(layout.special_ids, bounds)
    return Vocabulary(
        starts_word=~lettered | marked,
        lettered=lettered & ~special,
        ordinary=np.flatnonzero(~special),
        mask=tokenizer.mask_token_id,
        prefix=prefix,
        middle=middle,
        suffix=suffix,
    )


def find_words(segments: Sequence[np.ndarray], vocabulary: Vocabulary) -> Words:
    """Return the words: begins [0 2 3 4], ends [2 3 4 5] and segments [0 0 1 1] for ▁un able ▁to |
    able ▁is. A segment's first token starts a word.
    """
    ids = np.concatenate(segments)  # [T]
    lengths = [len(segment) for segment in segments]
    owners = np.repeat(np.arange(len(segments)), lengths)  # [T]: each token's segment
    starts_segment = np.diff(owners, prepend=-1) > 0
    begins = np.flatnonzero(vocabulary.starts_word[ids] | starts_segment)
    ends = np.append(begins, len(ids))[1:]
    return Words(begins=begins, ends=ends, segments=owners[begins])


def choose_tokens(
    words: Words,
    fraction: float,
    max_ngram: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """Return the tokens to mask, ascending, int64 [M]: whole words, n-grams within one segment.

    M is `fraction` of all tokens, or a few fewer if the next word is too long, but at least one
    word. An n-gram that would exceed M, or leave its segment, is shortened; one that overlaps
    another is skipped.

    Args:
        words: at least one.
        fraction: of the tokens.
        max_ngram: words of the longest n-gram.
        rng: source of all random numbers.
    """
    # Lists: the loop is in Python.
    begins = words.begins.tolist()
    ends = words.ends.tolist()
    segments = words.segments.tolist()
    missing = max(1, round(fraction * ends[-1]))  # tokens still to mask

    # Draw the length of the n-gram at each word, n with a probability proportional to 1 / n.
    chance = np.cumsum(1 / np.arange(1, max_ngram + 1))  # [max_ngram]: 1, 1.5, 1.83
    dice = rng.random(len(begins)) * chance[-1]
    lengths = np.searchsorted(chance, dice, side="right") + 1  # [W]
    order = rng.permutation(len(begins))

    # Take words in random order until enough tokens are masked.
    masked: set[int] = set()  # words
    for first, length in zip(order.tolist(), lengths.tolist(), strict=True):
        # An n-gram ends where its segment does, or has as many tokens as are missing.
        last_end = begins[first] + missing
        ngram = []
        for word in range(first, min(first + length, len(begins))):
            if segments[word] == segments[first] and ends[word] <= last_end:
                ngram.append(word)
        if not ngram or not masked.isdisjoint(ngram):
            continue
        masked.update(ngram)
        missing -= ends[ngram[-1]] - begins[first]
        if missing <= 0:
            break

    # If every word is too long, the shortest one is masked.
    if not masked:
        shortest = np.argmin(words.ends - words.begins)
        masked.add(int(shortest))
    tokens = [np.arange(begins[word], ends[word]) for word in sorted(masked)]
    return np.concatenate(tokens)


def corrupt(ids: np.ndarray, vocabulary: Vocabulary, rng: np.random.Generator) -> np.ndarray:
    """Return the model's input in place of the masked tokens `ids`; both int64 [M]."""
    # All numbers are drawn, also those that are not used, so that each token has its own.
    dice = rng.random(len(ids))
    drawn = rng.integers(len(vocabulary.ordinary), size=len(ids))
    random_ids = vocabulary.ordinary[drawn]
    shown = np.where(dice < AS_MASK, vocabulary.mask, ids)
    is_random = (dice >= AS_MASK) & (dice < AS_MASK + AS_RANDOM)
    return np.where(is_random, random_ids, shown)
