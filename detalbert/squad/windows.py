"""Windows of question and context, identical to those of the pair-wise fast-tokenizer call.

Arrays are flat columns, so that they can be saved individually and memory-mapped. "No answer" is
the place of [CLS]: position 0 of a window, or its last one where [CLS] comes last (XLNet).
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from detalbert.errors import UserError
from detalbert.reading.notes import Notes
from detalbert.squad.encoding import Tokens, encode, ranges, tokenizing


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
        before = self.context_starts(np.arange(len(self)))
        return (before + self.context_length + len(self.suffix_ids)).astype(np.int32)

    def context_starts(self, indices: np.ndarray) -> np.ndarray:
        """Return the position of the first context token in each chosen window, int64 [n]."""
        example = self.example_index[indices]
        question = self.question_ptr[example + 1] - self.question_ptr[example]  # [n], tokens
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
        context_start = self.context_starts(indices)
        context_end = context_start + self.context_length[indices]
        lengths = context_end + len(self.suffix_ids)  # [n]
        cu_seqlens = np.concatenate([[0], np.cumsum(lengths)])  # [n + 1]
        input_ids, token_type_ids = self._tokens(indices)
        return {
            "input_ids": input_ids,
            "token_type_ids": token_type_ids,
            "position_ids": ranges(np.zeros_like(lengths), lengths),
            "cu_seqlens": cu_seqlens.astype(np.int32),
            "start_positions": self.start_positions[indices].astype(np.int64),
            "end_positions": self.end_positions[indices].astype(np.int64),
            "context_start": context_start,
            "context_end": context_end,
            "null_positions": np.zeros_like(lengths) if len(self.prefix_ids) else lengths - 1,
            "windows": indices,
        }

    def _tokens(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return ids and token types of the row, int64 [T] each, window by window."""
        example, begin = self.example_index[indices], self.context_begin[indices]
        question, stop = self.question_ptr[example], self.question_ptr[example + 1]
        bounds = (question, stop, begin, begin + self.context_length[indices])  # [n] each
        # Not as memory maps, whose slices are slow.
        questions, contexts = np.asarray(self.question_ids), np.asarray(self.context_ids)
        parts, suffix = [np.zeros(0, np.int64)], np.split(self.suffix_ids, len(self.suffix_ids))
        for a, b, c, d in zip(*(bound.tolist() for bound in bounds), strict=True):
            pair = (questions[a:b], self.middle_ids, contexts[c:d])
            parts += (self.prefix_ids, *pair, *suffix)
        types = np.repeat(np.tile(self.segments, len(indices)), list(map(len, parts[1:])))
        return np.concatenate(parts), types.astype(np.int64)


def build_windows(
    examples: Sequence[Example],
    tokenizer: Any,
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
        raise UserError(f"tokenizer {name} is not a fast one; use one that has a tokenizer.json")
    layout = _pair_layout(tokenizer)  # leaves truncation and padding off, for `encode`
    number: dict[str, int] = {}  # distinct context -> its number
    owner = np.array([number.setdefault(e.context, len(number)) for e in examples], np.int64)  # [E]
    contexts = encode(tokenizer.backend_tokenizer, [*number])
    questions = _encode_questions(examples, tokenizer.backend_tokenizer, max_query_length, notes)
    asked, sizes = np.diff(questions.ptr), np.diff(contexts.ptr)[owner]  # [E], tokens
    room = max_seq_length - asked - sum(map(len, layout[:3]))  # [E], for context
    example, skip = _cover(examples, sizes, room, max_seq_length, doc_stride)  # [W] from here on
    begin = contexts.ptr[owner[example]] + skip
    count = np.minimum(room[example], sizes[example] - skip)
    shift = len(layout[0]) + asked[example] + len(layout[1]) - begin
    answers = _answer_tokens(examples, owner, contexts)[example]
    start, end = _labels(answers, contexts.offsets, begin, begin + count - 1, shift)
    if not len(layout[0]):  # [CLS] is last
        last = (shift + begin + count + len(layout[2]) - 1).astype(np.int32)
        start, end = (np.where(side == 0, last, side) for side in (start, end))
    texts = contexts.ids, contexts.offsets, questions.ids, questions.ptr
    counts = count.astype(np.int32)
    return Windows(*texts, example.astype(np.int32), begin, counts, start, end, *layout)


def check_questions_fit(
    examples: Sequence[Example], tokenizer: Any, max_seq_length: int, doc_stride: int
) -> None:
    """Raise the UserError that `build_windows` would for uncut questions, without their windows.
    Only questions that may be too long are encoded, and the contexts of those that are long.
    """
    special = sum(map(len, _pair_layout(tokenizer)[:3]))
    enough = max_seq_length - special - doc_stride  # shorter questions leave a window room
    # An ASCII character is two tokens at most: itself, and a mark that a word begins.
    examples = [e for e in examples if not e.question.isascii() or 2 * len(e.question) >= enough]
    backend = tokenizer.backend_tokenizer
    questions = encode(backend, [e.question.lstrip() for e in examples], with_offsets=False)
    room = max_seq_length - np.diff(questions.ptr) - special  # [E], for context
    for e in np.flatnonzero(room <= doc_stride).tolist():
        context = encode(backend, [examples[e].context], with_offsets=False)
        _check_cover([examples[e]], np.diff(context.ptr), room[[e]], max_seq_length, doc_stride)


def _encode_questions(
    examples: Sequence[Example], backend: Any, longest: int | None, notes: Notes | None
) -> Tokens:
    """Encode the questions, cut to `longest` tokens; count in `notes` how many were cut."""
    asked = encode(backend, [e.question.lstrip() for e in examples], with_offsets=False)
    lengths = np.diff(asked.ptr)  # [E], tokens
    cut = lengths if longest is None else np.minimum(lengths, longest)
    if notes is not None:
        notes.counts[f"questions are cut to {longest} tokens"] += int((lengths > cut).sum())
    ptr = np.concatenate([[0], np.cumsum(cut, dtype=np.int64)])
    return asked._replace(ids=asked.ids[ranges(asked.ptr[:-1], cut)], ptr=ptr)


def _pair_layout(tokenizer: Any) -> tuple[np.ndarray, ...]:
    """Return prefix, middle and suffix ids and token types, found by encoding a pair."""
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    with tokenizing():
        encoded = backend.encode("a", "a")
    sequence = encoded.sequence_ids  # None for a special token
    question, context = ([at for at, of in enumerate(sequence) if of == text] for text in (0, 1))
    edge = question and question[0] > 0 or encoded.ids[-1] == tokenizer.cls_token_id
    if not question or not context or question[0] > context[0] or not edge:
        said = "does not lay a pair out as question and context with [CLS] first or last"
        raise UserError(f"tokenizer {type(tokenizer).__name__} {said}; use one of BERT's kind")
    bounds = [0, question[0], question[-1] + 1, context[0], context[-1] + 1, len(sequence)]
    parts = [slice(*bound) for bound in zip(bounds, bounds[1:], strict=False)]
    segments = [(encoded.type_ids[part] or [0])[0] for part in parts[:4]]
    segments += encoded.type_ids[parts[4]]
    special = (np.array(encoded.ids[parts[i]], np.int32) for i in (0, 2, 4))
    return (*special, np.array(segments, np.int32))


def _cover(
    examples: Sequence[Example], length: np.ndarray, room: np.ndarray, limit: int, overlap: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return each window's example number and the context tokens before it, int64 [W] each. A
    context of 500 tokens, room for 360 and an overlap of 128 start windows at 0 and 232.
    """
    _check_cover(examples, length, room, limit, overlap)
    step = np.maximum(room - overlap, 1)  # [E]
    count = 1 + np.maximum(-((room - length) // step), 0)  # 1 + ceil((length - room) / step)
    example = np.repeat(np.arange(len(length)), count)  # [W]
    return example, ranges(np.zeros_like(count), count) * step[example]


def _check_cover(
    examples: Sequence[Example], length: np.ndarray, room: np.ndarray, limit: int, overlap: int
) -> None:
    """Raise UserError for the first question whose windows cannot cover its context, of `length`
    tokens [E] with `room` [E] for some of it in a window.
    """
    hopeless = np.flatnonzero((length > room) & (room <= overlap))
    if len(hopeless):
        e = hopeless[0]
        raise UserError(
            f"question {examples[e].id}: max_seq_length {limit} leaves {max(room[e], 0)} tokens "
            f"to a context of {length[e]}, and windows sharing doc_stride {overlap} cannot cover "
            "it; shorten the question, raise max_seq_length, or lower doc_stride"
        )


def _answer_tokens(examples: Sequence[Example], owner: np.ndarray, contexts: Tokens) -> np.ndarray:
    """Return first answers, [E, 4]: first and last character (end exclusive; -1 if there is none),
    first and last token, as numbers in context_ids; `owner` [E] numbers the contexts. One
    searchsorted covers all: character 17 of context 3 has the key 3 * 2**32 + 17.
    """
    firsts = (e.answers[0] if e.answers else ("", -1) for e in examples)
    chars = np.array([(at, at + len(text)) for text, at in firsts], np.int64).reshape(-1, 2)
    sizes = np.diff(contexts.ptr)  # [D]
    token_key = np.repeat(np.arange(len(sizes)) << 32, sizes)[:, None] + contexts.offsets  # [C, 2]
    first, last = (owner << 32) + chars.T  # [E] each
    first_token = np.searchsorted(token_key[:, 0], first, side="right") - 1
    last_token = np.searchsorted(token_key[:, 1], last, side="left")
    return np.stack([*chars.T, first_token, last_token], axis=1)


def _labels(
    answers: np.ndarray, offsets: np.ndarray, begin: np.ndarray, last: np.ndarray, shift: np.ndarray
) -> np.ndarray:
    """Return start and end positions, int32 [2, W]: the last token that starts no later than the
    answer, the first that ends no earlier; 0 unless the window has the whole answer. It holds the
    tokens begin to last of context_ids, at positions token + shift.
    """
    start_char, end_char, start_token, end_token = answers.T  # [W] each
    window = np.flatnonzero((start_char >= 0) & (begin <= last))  # [windows to label, at most]
    whole = offsets[begin[window], 0] <= start_char[window]
    whole &= offsets[last[window], 1] >= end_char[window]
    window = window[whole]  # [windows to label]
    labels = np.zeros((2, len(begin)), np.int32)
    labels[0, window] = (shift + np.minimum(start_token, last))[window]
    labels[1, window] = (shift + np.maximum(end_token, begin))[window]
    return labels
