"""Cutting of question and context into windows, and the tokens of their answers.

All of it is arithmetic on numbers of tokens, over all E questions or W windows at once: a loop over
the windows of SQuAD takes longer than its tokenizer.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

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


class Cover(NamedTuple):
    """The W windows that cover the contexts of E questions."""

    example: np.ndarray  # int64 [W], number of the question
    skip: np.ndarray  # int64 [W], tokens of the context before the window


class AnswerTokens(NamedTuple):
    """First answers, of questions or windows: int64 [n] each."""

    first_char: np.ndarray  # of the context; -1 if there is no answer
    end_char: np.ndarray  # the character after it
    first_token: np.ndarray  # a number in context_ids
    last_token: np.ndarray


def pair_layout(tokenizer: Any) -> PairLayout:
    """Return the layout, found by encoding a pair. Leaves truncation and padding off."""
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    with tokenizing():
        encoded = backend.encode("a", "a")

    # The texts' numbers by token, None for a special one: [None, 0, None, 1, None] of BERT.
    sequence = encoded.sequence_ids
    question = [place for place, text in enumerate(sequence) if text == 0]
    context = [place for place, text in enumerate(sequence) if text == 1]
    in_order = question and context and question[0] < context[0]
    cls_is_last = encoded.ids[-1] == tokenizer.cls_token_id
    if not in_order or not (question[0] > 0 or cls_is_last):
        name = type(tokenizer).__name__
        problem = "does not lay a pair out as question and context with [CLS] first or last"
        raise UserError(f"tokenizer {name} {problem}; use one of BERT's kind")

    prefix = slice(0, question[0])
    middle = slice(question[-1] + 1, context[0])
    suffix = slice(context[-1] + 1, len(sequence))
    segments = [
        *_first_type(encoded, prefix),
        encoded.type_ids[question[0]],
        *_first_type(encoded, middle),
        encoded.type_ids[context[0]],
        *encoded.type_ids[suffix],
    ]
    return PairLayout(
        prefix_ids=np.array(encoded.ids[prefix], np.int32),
        middle_ids=np.array(encoded.ids[middle], np.int32),
        suffix_ids=np.array(encoded.ids[suffix], np.int32),
        segments=np.array(segments, np.int32),
    )


def _first_type(encoded: Any, part: slice) -> list[int]:
    """Return the type of a part's tokens, as a list of one; 0 without any."""
    types = encoded.type_ids[part]
    return types[:1] or [0]


def cover(ids: Sequence[str], length: np.ndarray, room: np.ndarray, limits: Limits) -> Cover:
    """Return the windows of contexts of `length` tokens [E], of which a window has `room` [E] for
    some. A context of 500 tokens, room for 360 and 128 shared ones start windows at 0 and 232.
    """
    check_cover(ids, length, room, limits)
    step = np.maximum(room - limits.doc_stride, 1)  # [E], tokens from one window to the next
    later = -((room - length) // step)  # [E], ceil((length - room) / step)
    count = 1 + np.maximum(later, 0)  # [E], windows
    example = np.repeat(np.arange(len(length)), count)  # [W]
    number = ranges(np.zeros_like(count), count)  # [W], of the window among its question's
    return Cover(example, skip=number * step[example])


def check_cover(ids: Sequence[str], length: np.ndarray, room: np.ndarray, limits: Limits) -> None:
    """Raise UserError for the first question whose windows cannot cover its context."""
    is_cut = length > room
    too_little = room <= limits.doc_stride
    hopeless = np.flatnonzero(is_cut & too_little)
    if not len(hopeless):
        return
    first = hopeless[0]
    tokens = max(room[first], 0)
    raise UserError(
        f"max_seq_length {limits.max_seq_length} leaves {tokens} tokens to a context of "
        f"{length[first]}, and windows sharing doc_stride {limits.doc_stride} cannot cover it",
        key=f"question {ids[first]}",
        cure="shorten the question, raise max_seq_length, or lower doc_stride",
    )


def answer_tokens(chars: np.ndarray, owner: np.ndarray, contexts: Tokens) -> AnswerTokens:
    """Return the tokens of answers with these first and end characters, int64 [E, 2]; `owner` [E]
    numbers the contexts.

    One searchsorted covers all: character 17 of context 3 has the key 3 * 2**32 + 17.
    """
    first_char, end_char = chars.T  # [E] each
    sizes = np.diff(contexts.ptr)  # [D], tokens of each distinct context
    context_key = np.repeat(np.arange(len(sizes)) << 32, sizes)  # [C]
    token_keys = context_key[:, None] + contexts.offsets  # [C, 2]
    answer_key = owner << 32  # [E]
    begins_after = np.searchsorted(token_keys[:, 0], answer_key + first_char, side="right")
    last_token = np.searchsorted(token_keys[:, 1], answer_key + end_char, side="left")
    return AnswerTokens(first_char, end_char, begins_after - 1, last_token)


def labels(
    answers: AnswerTokens,
    offsets: np.ndarray,
    begin: np.ndarray,
    last: np.ndarray,
    shift: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Return start and end positions, int32 [W] each: the last token that starts no later than the
    answer, the first that ends no earlier; 0 unless the window has the whole answer.

    Args:
        answers: of each window.
        offsets: characters of the tokens in context_ids.
        begin, last: [W], the window's first and last token in context_ids.
        shift: [W], position in the window less number in context_ids.
    """
    has_answer = answers.first_char >= 0
    window = np.flatnonzero(has_answer & (begin <= last))  # [windows to label, at most]
    first_char = offsets[begin[window], 0]
    end_char = offsets[last[window], 1]
    is_whole = first_char <= answers.first_char[window]
    is_whole &= end_char >= answers.end_char[window]
    window = window[is_whole]  # [windows to label]

    start = np.zeros(len(begin), np.int32)
    first_token = np.minimum(answers.first_token, last)
    start[window] = (shift + first_token)[window]

    end = np.zeros(len(begin), np.int32)
    last_token = np.maximum(answers.last_token, begin)
    end[window] = (shift + last_token)[window]
    return start, end
