"""Windows of question and context, identical to those of the pair-wise fast-tokenizer call.

A context of SQuAD has about five questions, and the pair-wise call encodes it for each. Here every
distinct context and every question is encoded once, and windows are ranges of their tokens: six
times as fast, at the price of arithmetic on places.

Arrays are flat columns, so that they can be saved individually and memory-mapped. "No answer" is
the place of [CLS]: position 0 of a window, or its last one where [CLS] comes last (XLNet).
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import NamedTuple

import numpy as np
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from detalbert.errors import UserError
from detalbert.reading.notes import Notes
from detalbert.squad.cutting import (
    Limits,
    PairLayout,
    check_cover,
    cover,
    labels,
    pair_layout,
)
from detalbert.squad.encoding import Tokens, encode, ranges


class Example(NamedTuple):
    """One question; `answers` are (text, character start in `context`), () if it is unanswerable,
    None if not known (in prediction only).
    """

    id: str
    title: str
    context: str
    question: str
    answers: tuple[tuple[str, int], ...] | None


@dataclass(frozen=True, eq=False)
class Windows:
    """W windows of at most max_seq_length tokens: prefix, question, middle, context part, suffix.

    E examples, C tokens over all distinct contexts, Q over all questions.
    """

    context_ids: np.ndarray  # int32 [C], every distinct context once
    context_offsets: np.ndarray  # int32 [C, 2], characters of the context, half open
    question_ids: np.ndarray  # int32 [Q]
    question_ptr: np.ndarray  # int64 [E + 1], question e is question_ids[ptr[e]:ptr[e + 1]]
    example_index: np.ndarray  # int32 [W]
    context_begin: np.ndarray  # int64 [W], the window's first context token, in context_ids
    context_length: np.ndarray  # int32 [W]
    start_positions: np.ndarray  # int32 [W], first token of the answer; [CLS] when it is not inside
    end_positions: np.ndarray  # int32 [W], its last token
    prefix_ids: np.ndarray  # int32, special tokens before the question
    middle_ids: np.ndarray  # int32, between question and context
    suffix_ids: np.ndarray  # int32, after the context
    segments: np.ndarray  # int32 [4 + S], types of prefix, question, middle, context, S of suffix

    def __len__(self) -> int:
        return len(self.example_index)

    @cached_property
    def lengths(self) -> np.ndarray:
        """Tokens of each window, int32 [W]."""
        every = np.arange(len(self))
        context_end = self.context_starts(every) + self.context_length
        lengths = context_end + len(self.suffix_ids)
        return lengths.astype(np.int32)

    def context_starts(self, indices: np.ndarray) -> np.ndarray:
        """Return the position of the first context token in each chosen window, int64 [n]."""
        example = self.example_index[indices]
        begin = self.question_ptr[example]
        end = self.question_ptr[example + 1]
        question = end - begin  # [n], tokens
        return len(self.prefix_ids) + question + len(self.middle_ids)

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
        context_start = self.context_starts(indices)  # [n]
        context_end = context_start + self.context_length[indices]
        lengths = context_end + len(self.suffix_ids)  # [n]
        cu_seqlens = np.concatenate([[0], np.cumsum(lengths)])  # [n + 1]

        # [CLS] is a window's first token or its last one.
        first = np.zeros_like(lengths)
        cls_is_first = len(self.prefix_ids) > 0
        null_positions = first if cls_is_first else lengths - 1
        input_ids, token_type_ids = self._tokens(indices)
        return {
            "input_ids": input_ids,
            "token_type_ids": token_type_ids,
            "position_ids": ranges(first, lengths=lengths),
            "cu_seqlens": cu_seqlens.astype(np.int32),
            "start_positions": self.start_positions[indices].astype(np.int64),
            "end_positions": self.end_positions[indices].astype(np.int64),
            "context_start": context_start,
            "context_end": context_end,
            "null_positions": null_positions,
            "windows": indices,
        }

    def _tokens(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return ids and token types of the row, int64 [T] each, window by window."""
        example = self.example_index[indices]  # [n]
        question_begin = self.question_ptr[example]
        question_end = self.question_ptr[example + 1]
        context_begin = self.context_begin[indices]
        context_end = context_begin + self.context_length[indices]
        bounds = zip(
            question_begin.tolist(),
            question_end.tolist(),
            context_begin.tolist(),
            context_end.tolist(),
            strict=True,
        )
        # Not as memory maps, whose slices are slow.
        questions = np.asarray(self.question_ids)
        contexts = np.asarray(self.context_ids)

        # Five parts or more of each window, in the order of `segments`.
        suffix = np.split(self.suffix_ids, len(self.suffix_ids))
        parts = [np.zeros(0, dtype=np.int64)]
        for q_begin, q_end, c_begin, c_end in bounds:
            question = questions[q_begin:q_end]
            context = contexts[c_begin:c_end]
            parts += (self.prefix_ids, question, self.middle_ids, context, *suffix)

        # A part has one type.
        segments = np.tile(self.segments, len(indices))  # [parts]
        lengths = [len(part) for part in parts[1:]]
        types = np.repeat(segments, lengths)
        return np.concatenate(parts), types.astype(np.int64)


def build_windows(
    examples: Sequence[Example],
    tokenizer: PreTrainedTokenizerBase,
    max_seq_length: int = 384,
    doc_stride: int = 128,
    max_query_length: int | None = 64,
    notes: Notes | None = None,
) -> Windows:
    """Split each (question, context) pair into windows, labelled with the first answer.

    The windows are those of the pair-wise call `tokenizer(question.lstrip(), context,
    max_length=..., truncation="only_second", stride=doc_stride, return_overflowing_tokens=True)` of
    transformers, with questions cut at max_query_length tokens. But every distinct context and
    every question is encoded once. One known difference: in that call, byte-level tokenizers with
    add_prefix_space=True give the first token of each later window the space before it.

    Args:
        tokenizer: a fast tokenizer (PreTrainedTokenizerFast) that starts a pair with [CLS].
        max_seq_length, max_query_length: tokens; None: no question is cut.
        doc_stride: tokens that two neighbouring windows SHARE.
        notes: gets the questions that were cut.

    Raises:
        UserError: if the tokenizer is slow, or a question leaves at most doc_stride tokens to a
            context that does not fit in one window.
    """
    if not getattr(tokenizer, "is_fast", False):
        name = type(tokenizer).__name__
        raise UserError(
            f"tokenizer {name} is not a fast one",
            cure="use one that has a tokenizer.json",
        )
    layout = pair_layout(tokenizer)  # leaves truncation and padding off, for `encode`
    texts = _encode_texts(
        examples,
        backend=tokenizer.backend_tokenizer,
        longest=max_query_length,
        notes=notes,
    )
    limits = Limits(max_seq_length, doc_stride)
    # From texts to tokens, to ranges of tokens, to the answers' places in them.
    ids = [example.id for example in examples]
    cut = _cut_contexts(ids, texts=texts, layout=layout, limits=limits)
    start, end = _label(examples, texts=texts, layout=layout, cut=cut)
    return Windows(
        context_ids=texts.contexts.ids,
        context_offsets=texts.contexts.offsets,
        question_ids=texts.questions.ids,
        question_ptr=texts.questions.ptr,
        example_index=cut.example.astype(np.int32),
        context_begin=cut.begin,
        context_length=cut.size.astype(np.int32),
        start_positions=start,
        end_positions=end,
        prefix_ids=layout.prefix_ids,
        middle_ids=layout.middle_ids,
        suffix_ids=layout.suffix_ids,
        segments=layout.segments,
    )


class _Texts(NamedTuple):
    """Questions and contexts of E examples, encoded once each."""

    owner: np.ndarray  # int64 [E], number of the context among the distinct ones
    contexts: Tokens
    questions: Tokens


class _Cut(NamedTuple):
    """The context tokens of W windows."""

    example: np.ndarray  # int64 [W]
    begin: np.ndarray  # int64 [W], first one, a place in contexts.ids
    size: np.ndarray  # int64 [W], tokens
    position: np.ndarray  # int64 [W], of the first one in its window


def _encode_texts(
    examples: Sequence[Example], backend: Tokenizer, longest: int | None, notes: Notes | None
) -> _Texts:
    """Encode every distinct context once, and every question, of at most `longest` tokens."""
    numbers: dict[str, int] = {}  # of the distinct contexts
    owners = [numbers.setdefault(example.context, len(numbers)) for example in examples]
    return _Texts(
        owner=np.array(owners, dtype=np.int64),
        contexts=encode(backend, list(numbers)),
        questions=_encode_questions(examples, backend, longest=longest, notes=notes),
    )


def _cut_contexts(ids: Sequence[str], texts: _Texts, layout: PairLayout, limits: Limits) -> _Cut:
    """Cut the contexts into windows; `ids` are the questions', for messages."""
    question_length = np.diff(texts.questions.ptr)  # [E], tokens
    context_length = np.diff(texts.contexts.ptr)[texts.owner]  # [E]
    room = limits.max_seq_length - question_length - layout.special  # [E], for context
    example, skip = cover(ids, length=context_length, room=room, limits=limits)  # [W]

    # Where each window's tokens are: in its context, in all contexts, and in the window.
    remaining = context_length[example] - skip  # [W], tokens from the window's first one on
    first_token = texts.contexts.ptr[texts.owner[example]]  # [W], of the context
    question_end = len(layout.prefix_ids) + question_length[example]
    return _Cut(
        example=example,
        begin=first_token + skip,
        size=np.minimum(room[example], remaining),
        position=question_end + len(layout.middle_ids),
    )


def _label(
    examples: Sequence[Example], texts: _Texts, layout: PairLayout, cut: _Cut
) -> tuple[np.ndarray, np.ndarray]:
    """Return start and end position of each window's answer, int32 [W]; [CLS]'s if the window has
    not all of it.
    """
    start, end = labels(
        _answer_chars(examples),
        owner=texts.owner,
        contexts=texts.contexts,
        example=cut.example,
        begin=cut.begin,
        last=cut.begin + cut.size - 1,
        shift=cut.position - cut.begin,
    )
    if len(layout.prefix_ids):  # [CLS] is first, at the 0 that `labels` gives
        return start, end
    length = cut.position + cut.size + len(layout.suffix_ids)  # [W]
    last = (length - 1).astype(np.int32)
    return np.where(start == 0, last, start), np.where(end == 0, last, end)


def check_questions_fit(
    examples: Sequence[Example],
    tokenizer: PreTrainedTokenizerBase,
    max_seq_length: int,
    doc_stride: int,
) -> None:
    """Raise the UserError that `build_windows` would for uncut questions, without their windows.
    Only questions that may be too long are encoded, and the contexts of those that are long.
    """
    special = pair_layout(tokenizer).special
    limits = Limits(max_seq_length, doc_stride)
    enough = max_seq_length - special - doc_stride  # shorter questions leave a window room
    backend = tokenizer.backend_tokenizer

    # An ASCII character is two tokens at most: itself, and a mark that a word begins.
    long = []
    for example in examples:
        is_short = example.question.isascii() and 2 * len(example.question) < enough
        if not is_short:
            long.append(example)

    # Those that leave too little room need a context that fits as it is.
    questions = encode(backend, _question_texts(long), with_offsets=False)
    room = max_seq_length - np.diff(questions.ptr) - special  # [questions], for context
    for number in np.flatnonzero(room <= doc_stride).tolist():
        example = long[number]
        context = encode(backend, [example.context], with_offsets=False)
        check_cover(
            [example.id],
            length=np.diff(context.ptr),
            room=room[[number]],
            limits=limits,
        )


def _question_texts(examples: Sequence[Example]) -> list[str]:
    return [example.question.lstrip() for example in examples]


def _encode_questions(
    examples: Sequence[Example], backend: Tokenizer, longest: int | None, notes: Notes | None
) -> Tokens:
    """Encode the questions, cut to `longest` tokens; count in `notes` how many were cut."""
    questions = encode(backend, _question_texts(examples), with_offsets=False)
    lengths = np.diff(questions.ptr)  # [E], tokens
    cut_lengths = lengths if longest is None else np.minimum(lengths, longest)
    if notes is not None:
        note = f"questions are cut to {longest} tokens"
        notes.counts[note] += int((lengths > cut_lengths).sum())

    # The tokens that stay, and where each question begins among them.
    ends = np.cumsum(cut_lengths, dtype=np.int64)
    tokens = ranges(questions.ptr[:-1], lengths=cut_lengths)  # those that stay
    return questions._replace(ids=questions.ids[tokens], ptr=np.concatenate([[0], ends]))


def _answer_chars(examples: Sequence[Example]) -> np.ndarray:
    """Return first and end character of the first answers, int64 [E, 2]; -1 without one."""
    chars = []
    for example in examples:
        if example.answers:
            text, first = example.answers[0]
            chars.append((first, first + len(text)))
        else:
            chars.append((-1, -1))
    return np.array(chars, dtype=np.int64).reshape(-1, 2)
