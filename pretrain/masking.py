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
    size = len(tokenizer)
    ids = list(range(size))
    tokens = [str(token) for token in tokenizer.convert_ids_to_tokens(ids)]
    backend = tokenizer.backend_tokenizer
    texts = tokens
    if isinstance(backend.decoder, ByteLevel):
        # Whose tokens spell bytes; part of a character is no punctuation.
        decoded = map(backend.decoder.decode, ([token] for token in tokens))
        texts = [text.replace("\ufffd", "a") for text in decoded]
    lettered = np.array([any(map(str.isalnum, text)) for text in texts])  # [V]

    # WordPiece marks what continues a word; others mark what begins one.
    continuing = getattr(backend.model, "continuing_subword_prefix", None)
    if continuing:
        marked = np.array([not token.startswith(continuing) for token in tokens])  # [V]
    else:
        marked = np.array([token[0] in "▁Ġ" for token in tokens])
    special = np.zeros(size, bool)
    special[tokenizer.all_special_ids] = True
    prefix, middle, suffix = _special_tokens(tokenizer)
    return Vocabulary(
        starts_word=~lettered | marked,
        lettered=lettered & ~special,
        ordinary=np.flatnonzero(~special),
        mask=tokenizer.mask_token_id,
        prefix=prefix,
        middle=middle,
        suffix=suffix,
    )


def _special_tokens(
    tokenizer: PreTrainedTokenizerBase,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the tokens before, between and behind two segments: [CLS] A [SEP] B [SEP], or as the
    tokenizer has it, <s> A </s></s> B </s>.
    """
    if tokenizer.num_special_tokens_to_add(pair=True):
        layout = pair_layout(tokenizer)
        before, _, between, *_ = layout.lengths
        prefix, middle, suffix = np.split(layout.special_ids, [before, before + between])
        return prefix, middle, suffix
    separator = np.array([tokenizer.sep_token_id])
    return np.array([tokenizer.cls_token_id]), separator, separator


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
    words: Words, fraction: float, max_ngram: int, rng: np.random.Generator
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
    begins, ends, segments = (column.tolist() for column in words)  # lists: the loop is in Python
    count = len(begins)
    missing = max(1, round(fraction * ends[-1]))  # tokens still to mask

    # Draw the length of the n-gram at each word, n with a probability proportional to 1 / n.
    chance = np.cumsum(1 / np.arange(1, max_ngram + 1))  # [max_ngram]: 1, 1.5, 1.83
    dice = rng.random(count) * chance[-1]
    lengths = np.searchsorted(chance, dice, side="right") + 1  # [W]

    # Take words in random order until enough tokens are masked.
    masked = [False] * count
    chosen = []
    for word, length in zip(rng.permutation(count).tolist(), lengths.tolist(), strict=True):
        # Shorten an n-gram that leaves its segment, or has more tokens than are missing.
        first_token = begins[word]
        last_end = first_token + missing
        end = min(word + length, count)  # of the n-gram, in words
        while end > word and (segments[end - 1] != segments[word] or ends[end - 1] > last_end):
            end -= 1
        if end == word or any(masked[word:end]):
            continue
        masked[word:end] = [True] * (end - word)
        end_token = ends[end - 1]
        chosen.append(np.arange(first_token, end_token))
        missing -= end_token - first_token
        if missing <= 0:
            break
    if chosen:
        return np.sort(np.concatenate(chosen))

    # Every word is too long: mask the shortest one.
    shortest = int(np.argmin(words.ends - words.begins))
    return np.arange(begins[shortest], ends[shortest])


def corrupt(ids: np.ndarray, vocabulary: Vocabulary, rng: np.random.Generator) -> np.ndarray:
    """Return the model's input in place of the masked tokens `ids`; both int64 [M]."""
    # All numbers are drawn, also those that are not used, so that each token has its own.
    dice = rng.random(len(ids))
    drawn = rng.integers(len(vocabulary.ordinary), size=len(ids))
    random_ids = vocabulary.ordinary[drawn]
    shown = np.where(dice < AS_MASK, vocabulary.mask, ids)
    is_random = (dice >= AS_MASK) & (dice < AS_MASK + AS_RANDOM)
    return np.where(is_random, random_ids, shown)
