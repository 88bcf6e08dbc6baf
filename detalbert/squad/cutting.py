"""Cutting of question and context into windows, and the tokens of their answers.

All of it is arithmetic on numbers of tokens, over all E questions or W windows at once: a loop over
the windows of SQuAD takes longer than its tokenizer.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from transformers import PreTrainedTokenizerBase

from detalbert.errors import UserError
from detalbert.squad.encoding import Tokens, ranges, tokenizing


class PairLayout(NamedTuple):
    """Special tokens around a question and its context, and the token types of all parts."""

    prefix_ids: np.ndarray  # int32, special tokens before the question
    middle_ids: np.ndarray  # int32, between question and context
    suffix_ids: np.ndarray  # int32, after the context
    segments: np.ndarray  # int32 [4 + S], types of prefix, question, middle, context, S of suffix

    @property
    def special(self) -> int:
        """Number of special tokens in a window."""
        return len(self.prefix_ids) + len(self.middle_ids) + len(self.suffix_ids)


class Limits(NamedTuple):
    """Tokens of a window, and those that two neighbouring windows share."""

    max_seq_length: int
    doc_stride: int


def pair_layout(tokenizer: PreTrainedTokenizerBase) -> PairLayout:
    """Return the layout, found by encoding a pair. Leaves truncation and padding off."""
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    with tokenizing():
        pair = backend.encode("a", "a")

    # The texts' numbers by token, None for a special one: [None, 0, None, 1, None] of BERT.
    sequence = pair.sequence_ids
    question = [place for place, text in enumerate(sequence) if text == 0]
    context = [place for place, text in enumerate(sequence) if text == 1]
    in_order = question and context and question[0] < context[0]
    cls_is_last = pair.ids[-1] == tokenizer.cls_token_id
    if not in_order or not (question[0] > 0 or cls_is_last):
        name = type(tokenizer).__name__
        raise UserError(
            f"tokenizer {name} does not lay a pair out as question and context with [CLS] first "
            "or last",
            cure="use one of BERT's kind",
        )

    # What is around the two texts is special; parts without tokens have type 0.
    ids = np.array(pair.ids, dtype=np.int32)
    types = np.array(pair.type_ids, dtype=np.int32)
    prefix = slice(0, question[0])
    middle = slice(question[-1] + 1, context[0])
    suffix = slice(context[-1] + 1, len(sequence))
    segments = [
        types[prefix].max(initial=0),
        types[question[0]],
        types[middle].max(initial=0),
        types[context[0]],
        *types[suffix],
    ]
    return PairLayout(
        prefix_ids=ids[prefix],
        middle_ids=ids[middle],
        suffix_ids=ids[suffix],
        segments=np.array(segments, dtype=np.int32),
    )


def cover(
    ids: Sequence[str], length: np.ndarray, room: np.ndarray, limits: Limits
) -> tuple[np.ndarray, np.ndarray]:
    """Return the windows of contexts of `length` tokens [E], of which a window has `room` [E] for
    some: number of the question, and tokens of the context before the window, int64 [W] each. A
    context of 500 tokens, room for 360 and 128 shared ones start windows at 0 and 232.
    """
    check_cover(ids, length=length, room=room, limits=limits)
    step = np.maximum(room - limits.doc_stride, 1)  # [E], tokens from one window to the next
    later_windows = -((room - length) // step)  # [E], ceil((length - room) / step)
    count = 1 + np.maximum(later_windows, 0)  # [E], windows
    example = np.repeat(np.arange(len(length)), count)  # [W]
    number = ranges(np.zeros_like(count), lengths=count)  # [W], of the window in its question
    return example, number * step[example]


def check_cover(ids: Sequence[str], length: np.ndarray, room: np.ndarray, limits: Limits) -> None:
    """Raise UserError for the first question whose windows cannot cover its context."""
    is_cut = length > room
    no_step = room <= limits.doc_stride  # the next window would begin no later
    impossible = np.flatnonzero(is_cut & no_step)
    if not len(impossible):
        return
    first = impossible[0]
    tokens = max(room[first], 0)
    raise UserError(
        f"max_seq_length {limits.max_seq_length} leaves {tokens} tokens to a context of "
        f"{length[first]}, and windows sharing doc_stride {limits.doc_stride} cannot cover it",
        key=f"question {ids[first]}",
        cure="shorten the question, raise max_seq_length, or lower doc_stride",
    )


def labels(
    chars: np.ndarray,
    owner: np.ndarray,
    contexts: Tokens,
    example: np.ndarray,
    begin: np.ndarray,
    last: np.ndarray,
    shift: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Return start and end positions, int32 [W] each: the last token that starts no later than the
    answer, the first that ends no earlier; 0 unless the window has the whole answer.

    One searchsorted covers all: character 17 of context 3 has the key 3 * 2**32 + 17.

    Args:
        chars: int64 [E, 2], first character of the answer (-1: none) and the one after it.
        owner: [E], number of the context.
        contexts: the tokens.
        example: [W], number of the question.
        begin, last: [W], the window's first and last token in all contexts.
        shift: [W], position in the window less number in all contexts.
    """
    # 2**32 is more than any context has characters.
    sizes = np.diff(contexts.ptr)  # [D], tokens of each distinct context
    context_key = np.repeat(np.arange(len(sizes)) << 32, sizes)  # [C]
    begin_keys = context_key + contexts.offsets[:, 0]  # [C], of each token's first character
    end_keys = context_key + contexts.offsets[:, 1]
    answer_keys = (owner << 32) + chars.T  # [2, E]

    # The last token that begins no later than the answer, the first that ends no earlier: [W].
    first_token = np.searchsorted(begin_keys, answer_keys[0], side="right")[example] - 1
    last_token = np.searchsorted(end_keys, answer_keys[1], side="left")[example]

    # The windows that have all characters of their answer.
    first_char, end_char = chars[example].T  # [W] each
    window = np.flatnonzero((first_char >= 0) & (begin <= last))  # [windows to label, at most]
    is_whole = contexts.offsets[begin[window], 0] <= first_char[window]
    is_whole &= contexts.offsets[last[window], 1] >= end_char[window]
    window = window[is_whole]  # [windows to label]

    # Tokens may share characters, so the answer's may begin before the window or end behind it.
    start = np.zeros(len(begin), dtype=np.int32)
    end = np.zeros(len(begin), dtype=np.int32)
    start[window] = (shift + np.minimum(first_token, last))[window]
    end[window] = (shift + np.maximum(last_token, begin))[window]
    return start, end
