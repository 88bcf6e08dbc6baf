"""Windows of question and context, identical to those of the pair-wise fast-tokenizer call.

A context of SQuAD has about five questions, and the pair-wise call encodes it for each. Here every
distinct context and every question is encoded once, and a window is two ranges of their tokens: six
times as fast, at the price of arithmetic on positions. It runs over all questions or windows at
once, as a loop over those of SQuAD takes longer than its tokenizer.

A question of 2 tokens and a context of 8, in windows of at most 9 tokens that share 2:

    window 0:  [CLS] who ran [SEP] c0 c1 c2 c3 [SEP]       room for 4 tokens of the context,
    window 1:  [CLS] who ran [SEP] c2 c3 c4 c5 [SEP]       so the next window begins 4 - 2 later
    window 2:  [CLS] who ran [SEP] c4 c5 c6 c7 [SEP]

The answer c3 c4 is whole in window 1: start 5, end 6. Elsewhere both are the position of [CLS],
which means "no answer": 0, or that of the last token where [CLS] comes last (XLNet).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from detalbert.errors import UserError
from detalbert.squad.encoding import encode, pair_layout, ranges
from detalbert.squad.example import Example


@dataclass(frozen=True, eq=False)
class Windows:
    """W windows of at most max_seq_length tokens, each of R parts: special tokens, the question,
    special tokens, a range of the context, and each special token after it.

    A part is a range of P tokens: those of all distinct contexts [C], of all E questions, and the
    special ones. Flat columns can be saved individually and memory-mapped.
    """

    token_ids: np.ndarray  # int32 [P]
    context_offsets: np.ndarray  # int32 [C, 2], characters of the context, half open
    question_ptr: np.ndarray  # int64 [E + 1], question e is token_ids[ptr[e]:ptr[e + 1]]
    part_begins: np.ndarray  # int64 [R], first token of the special parts
    part_lengths: np.ndarray  # int64 [R], 0 of question and context
    part_types: np.ndarray  # int64 [R], token type
    example_index: np.ndarray  # int32 [W]
    context_begin: np.ndarray  # int64 [W], the window's first context token, in token_ids
    context_length: np.ndarray  # int32 [W]
    start_positions: np.ndarray  # int32 [W], first token of the answer; [CLS] when it is not inside
    end_positions: np.ndarray  # int32 [W], its last token
    holds_answer: np.ndarray  # int8 [W], 1: the answer is inside, 0: it is not, -1: there is none

    def __len__(self) -> int:
        return len(self.example_index)

    @property
    def context_ids(self) -> np.ndarray:
        """Tokens of every distinct context once, int32 [C]."""
        return self.token_ids[: len(self.context_offsets)]

    @cached_property
    def lengths(self) -> np.ndarray:
        """Tokens of each window, int32 [W]."""
        every = np.arange(len(self))
        suffix = self.part_lengths[4:].sum()
        lengths = self.context_starts(every) + self.context_length + suffix
        return lengths.astype(np.int32)

    def context_starts(self, indices: np.ndarray) -> np.ndarray:
        """Return the position of the first context token in each chosen window, int64 [n]."""
        example = self.example_index[indices]
        begin = self.question_ptr[example]
        end = self.question_ptr[example + 1]
        special = self.part_lengths[:4].sum()
        return special + end - begin

    def null_positions(self, indices: np.ndarray) -> np.ndarray:
        """Return the position of [CLS], first or last, in each chosen window, int64 [n]."""
        lengths = self.lengths[indices].astype(np.int64)
        cls_is_first = self.part_lengths[0] > 0
        return np.zeros_like(lengths) if cls_is_first else lengths - 1

    def columns(self) -> dict[str, np.ndarray]:
        """Return all arrays by name; `Windows(**columns)` restores the windows."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def pack(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """Return the chosen windows end to end in a row of T real tokens, without padding.

        Args:
            indices: window numbers, [n], in any order; n may be 0.

        Returns:
            input_ids, token_type_ids, position_ids (from 0 in every window): int64 [T]; cu_seqlens:
                int32 [n + 1], window i is tokens cu_seqlens[i]:cu_seqlens[i + 1]; start_positions,
                end_positions: int64 [n]; context_start, context_end: int64 [n], the half-open range
                of context positions; null_positions: int64 [n], of [CLS]; windows: int64 [n],
                `indices`.
        """
        indices = np.asarray(indices, dtype=np.int64)
        example = self.example_index[indices]  # [n]

        # First token and length of each part, in token_ids.
        shape = (len(indices), 1)
        begins = np.tile(self.part_begins, shape)  # [n, R]
        begins[:, 1] = self.question_ptr[example]
        begins[:, 3] = self.context_begin[indices]
        lengths = np.tile(self.part_lengths, shape)
        lengths[:, 1] = self.question_ptr[example + 1] - begins[:, 1]
        lengths[:, 3] = self.context_length[indices]

        tokens = ranges(begins.ravel(), lengths=lengths.ravel())  # [T], places in token_ids
        window_lengths = lengths.sum(axis=1)  # [n]
        cu_seqlens = np.append(0, np.cumsum(window_lengths))  # [n + 1]
        context_start = self.context_starts(indices)
        return {
            "input_ids": self.token_ids[tokens].astype(np.int64),
            "token_type_ids": np.repeat(np.tile(self.part_types, len(indices)), lengths.ravel()),
            "position_ids": ranges(np.zeros_like(window_lengths), lengths=window_lengths),
            "cu_seqlens": cu_seqlens.astype(np.int32),
            "start_positions": self.start_positions[indices].astype(np.int64),
            "end_positions": self.end_positions[indices].astype(np.int64),
            "context_start": context_start,
            "context_end": context_start + lengths[:, 3],
            "null_positions": self.null_positions(indices),
            "windows": indices,
        }


def window_grid(logits: Tensor, cu_seqlens: Tensor, max_length: int) -> Tensor:
    """Convert [T] to [n, max_length], one window per line, -inf past its end."""
    starts = cu_seqlens[:-1, None].long()  # [n, 1]
    ends = cu_seqlens[1:, None].long()
    place = torch.arange(max_length, device=cu_seqlens.device)
    token = starts + place  # [n, max_length]
    # Cells past the end read some other token, and are overwritten.
    last = len(logits) - 1
    grid = logits[token.clamp(max=last)]
    return grid.masked_fill(token >= ends, -torch.inf)


def build_windows(
    examples: Sequence[Example],
    tokenizer: PreTrainedTokenizerBase,
    max_seq_length: int = 384,
    doc_stride: int = 128,
    max_query_length: int | None = 64,
    notes: Counter[str] | None = None,
) -> Windows:
    """Split each (question, context) pair into windows, labelled with the first answer.

    The windows are those of the pair-wise call `tokenizer(question.lstrip(), context,
    max_length=..., truncation="only_second", stride=doc_stride, return_overflowing_tokens=True)` of
    transformers, with questions cut at max_query_length tokens. One known difference: in that call,
    byte-level tokenizers with add_prefix_space=True give the first token of each later window the
    space before it.

    Args:
        examples: the E questions.
        tokenizer: a fast tokenizer (PreTrainedTokenizerFast) that starts a pair with [CLS].
        max_seq_length, max_query_length: tokens; None: no question is cut.
        doc_stride: tokens that two neighbouring windows SHARE.
        notes: counts the questions that were cut.

    Raises:
        UserError: if the tokenizer is slow, or a question leaves at most doc_stride tokens to a
            context that does not fit in one window.
    """
    layout = pair_layout(tokenizer)  # leaves truncation and padding off, for `encode`
    backend = tokenizer.backend_tokenizer

    # Encode every distinct context once, and every question.
    numbers: dict[str, int] = {}  # of the distinct contexts
    owners = [numbers.setdefault(example.context, len(numbers)) for example in examples]
    owner = np.array(owners, dtype=np.int64)  # [E]
    contexts = encode(backend, list(numbers))
    questions = encode(
        backend,
        [example.question.lstrip() for example in examples],
        with_offsets=False,
        longest=max_query_length,
    )
    if notes is not None:
        notes[f"questions are cut to {max_query_length} tokens"] += questions.cut

    # Cut the contexts into windows, which begin `step` tokens apart.
    context_length = contexts.lengths[owner]  # [E]
    room = (
        max_seq_length - len(layout.special_ids) - questions.lengths
    )  # [E], for context tokens in a window
    _check_room(examples, context_length, room=room, doc_stride=doc_stride)
    step = np.maximum(room - doc_stride, 1)  # [E]
    later_windows = -((room - context_length) // step)  # [E], ceil((context_length - room) / step)
    count = 1 + np.maximum(later_windows, 0)  # [E]
    example = np.repeat(np.arange(len(count)), count)  # [W]
    number = ranges(np.zeros_like(count), lengths=count)  # [W], of the window in its question
    skipped = number * step[example]  # [W], context tokens before the window
    length = np.minimum(room[example], context_length[example] - skipped)  # [W]

    # All tokens in one array, with the special ones last.
    question_begin = len(contexts.ids)
    special_begin = question_begin + len(questions.ids)
    unset = np.zeros(0, dtype=np.int32)  # till `_label`
    unlabelled = Windows(
        token_ids=np.concatenate([contexts.ids, questions.ids, layout.special_ids]),
        context_offsets=contexts.offsets,
        question_ptr=question_begin + questions.ptr,
        part_begins=special_begin + np.cumsum(layout.lengths) - layout.lengths,
        part_lengths=layout.lengths,
        part_types=layout.types,
        example_index=example.astype(np.int32),
        context_begin=contexts.ptr[owner[example]] + skipped,
        context_length=length.astype(np.int32),
        start_positions=unset,
        end_positions=unset,
        holds_answer=unset,
    )
    return _label(unlabelled, examples, owner, contexts.ptr)


def _check_room(
    examples: Sequence[Example],
    context_length: np.ndarray,
    room: np.ndarray,
    doc_stride: int,
) -> None:
    """Raise UserError for the first question whose windows, with `room` [E] for context tokens,
    cannot cover its context of `context_length` tokens [E].
    """
    is_cut = context_length > room
    no_step = room <= doc_stride  # the next window would begin no later
    for number in np.flatnonzero(is_cut & no_step).tolist():
        tokens = max(int(room[number]), 0)
        raise UserError(
            f"max_seq_length leaves {tokens} tokens to a context of {context_length[number]}, and "
            f"windows sharing doc_stride {doc_stride} cannot cover it",
            key=f"question {examples[number].id}",
            cure="shorten the question, raise max_seq_length, or lower doc_stride",
        )


def _label(
    windows: Windows,
    examples: Sequence[Example],
    owner: np.ndarray,
    context_ptr: np.ndarray,
) -> Windows:
    """Return the windows with start and end position of each one's answer: the last token that
    begins no later than the answer, the first that ends no earlier; [CLS]'s unless both are inside.

    Args:
        windows: without labels.
        examples: the questions.
        owner: int64 [E], number of the context.
        context_ptr: int64 [D + 1], context d is tokens context_ptr[d]:context_ptr[d + 1].
    """
    # First and end character of the first answers; without one, a place before the context.
    answers = [example.answers[0] if example.answers else ("", -1) for example in examples]
    places = [(first_char, first_char + len(text)) for text, first_char in answers]
    chars = np.array(places, dtype=np.int64).reshape(-1, 2)  # [E, 2]

    # One search covers all contexts: character 17 of context 3 has the key 3 * 2**32 + 17.
    contexts = np.arange(len(context_ptr) - 1)  # [D]
    context_key = np.repeat(contexts << 32, np.diff(context_ptr))  # [C]
    answer_keys = (owner << 32) + chars.T  # [2, E]
    begin_keys = context_key + windows.context_offsets[:, 0]  # [C]
    first = np.searchsorted(begin_keys, answer_keys[0], side="right") - 1  # [E], tokens
    end_keys = context_key + windows.context_offsets[:, 1]
    last = np.searchsorted(end_keys, answer_keys[1], side="left")

    # Tokens may share characters, so the answer's may begin before the window or end behind it.
    first = first[windows.example_index]  # [W]
    last = last[windows.example_index]
    begin = windows.context_begin
    end = begin + windows.context_length
    is_inside = (begin <= first) & (last < end)
    first = np.minimum(first, end - 1)
    last = np.maximum(last, begin)

    # From token_ids to the window.
    every = np.arange(len(windows))
    shift = windows.context_starts(every) - begin
    null = windows.null_positions(every)
    start_positions = np.where(is_inside, first + shift, null)
    end_positions = np.where(is_inside, last + shift, null)
    has_answer = chars[windows.example_index, 0] >= 0  # [W]
    return replace(
        windows,
        start_positions=start_positions.astype(np.int32),
        end_positions=end_positions.astype(np.int32),
        holds_answer=np.where(has_answer, is_inside, -1).astype(np.int8),
    )
