"""Packed rows: n windows end to end, T real tokens, no padding; and which windows share a row.

A batch is one rank's windows of one optimizer step, as a list of packed rows (micro-batches). Real
SQuAD windows average 173 of 384 tokens, so padding would more than double the work. The price is an
attention that must know the windows' bounds (attention.py), and rows whose length varies.
"""

import itertools
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypedDict, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from detalbert.engine.order import spread
from detalbert.errors import UserError

CPU_TOKENS = 4096  # of a row on a CPU, unless the config sets another number
CHUNK = 512  # questions whose windows validation packs together; sets what prediction holds


class Row(TypedDict):
    """Columns of every packed row."""

    input_ids: Tensor  # int64 [T]
    token_type_ids: Tensor  # int64 [T], 1 in a window's second segment
    position_ids: Tensor  # int64 [T], from 0 in every window
    cu_seqlens: Tensor  # int32 [n + 1], window i is tokens cu_seqlens[i]:cu_seqlens[i + 1]
    max_length: int  # tokens of the longest window, known without a look at the device
    windows: Tensor  # int64 [n], the number of each window in its split


class SpanRow(Row):
    """A row with one labelled span per window; positions count from the window's start."""

    start_positions: Tensor  # int64 [n], first token of the span; -100: no loss for this window
    end_positions: Tensor  # int64 [n], its last token


class SquadRow(SpanRow):
    """A row of questions and contexts; a span at [CLS] means "no answer here"."""

    context_start: Tensor  # int64 [n], the first position that is context
    context_end: Tensor  # int64 [n], the position after the last
    null_positions: Tensor  # int64 [n], of [CLS]


AnyRow = TypeVar("AnyRow", bound=Mapping[str, Any])
# (model, row on the device and maybe padded, its real tokens) -> what a forward gives
ReadLogits = Callable[[Any, Any, int], tuple[Tensor, ...]]
Column = TypeVar("Column", Tensor, np.ndarray)


class PackableWindows(Protocol):
    """Windows of a split, W in all, that can be packed to rows."""

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each window, int [W]."""

    def pack(self, share: np.ndarray, /) -> Mapping[str, np.ndarray]:
        """Return the columns of a row of these windows, all but `max_length`."""


def dummy_row(tokens: int, longest: int, device: torch.device) -> Row:
    """Return a dummy row of `tokens` zeros in windows of `longest` and a shorter last one."""
    bounds = [*range(0, tokens, longest), tokens]
    position = torch.arange(tokens, device=device)
    zeros = torch.zeros(tokens, dtype=torch.int64, device=device)
    return {
        "input_ids": zeros,
        "token_type_ids": zeros,
        "position_ids": position % longest,
        "cu_seqlens": torch.tensor(bounds, dtype=torch.int32, device=device),
        "max_length": min(longest, tokens),
        "windows": torch.arange(len(bounds) - 1, device=device),
    }


def convert_row(row: AnyRow, kind: type[Column], change: Callable[[Column], object]) -> AnyRow:
    """Return `row` with `change(value)` in place of each value of class `kind`."""
    changed = {}
    for name, value in row.items():
        changed[name] = change(value) if isinstance(value, kind) else value
    return cast(AnyRow, changed)


def to_device(row: AnyRow, device: torch.device) -> AnyRow:
    """Return `row` with its tensors on `device`."""
    return convert_row(row, kind=Tensor, change=lambda tensor: tensor.to(device, non_blocking=True))


def micro_batches(lengths: np.ndarray, max_tokens: int, padded: bool = False) -> list[np.ndarray]:
    """Split one rank's windows into micro-batches of at most `max_tokens` real tokens each.

    Tries the fewest bins that the total allows, filled evenly, then one more until all fit.

    Args:
        lengths: tokens per window, [n].
        max_tokens: of a micro-batch.
        padded: whether they run padded: a micro-batch has windows of like lengths then, and with
            their padding at most `max_tokens`.

    Returns:
        Positions in `lengths` of each micro-batch, ascending, int64.

    Raises:
        UserError: a window is longer than `max_tokens`.
    """
    lengths = np.asarray(lengths, dtype=np.int64)
    if not len(lengths):
        return []
    if lengths.max() > max_tokens:
        raise UserError(
            f"{max_tokens} is less than one window of {lengths.max()} tokens",
            key="hyperparameters.max_tokens_per_forward",
            cure="raise it",
        )
    if padded:
        rows = rows_of_like_lengths(
            lengths, begin=0, end=len(lengths), max_tokens=max_tokens, padded=True
        )
        return [np.sort(row) for row in rows]

    # Spreading evenly may leave one bin too full, so the fewest bins are a first guess.
    total = int(lengths.sum())
    bins = max(1, -(-total // max_tokens))
    while True:
        rows = spread(lengths, bins, room=len(lengths))
        longest = max(int(lengths[row].sum()) for row in rows)
        if longest <= max_tokens:
            return rows
        bins += 1


def pack_rows(
    windows: PackableWindows, share: np.ndarray, max_tokens: int, padded: bool = False
) -> list[Any]:
    """Pack windows in rows of at most `max_tokens` real tokens.

    Args:
        windows: of a split.
        share: the windows' numbers, int64 [n], or, if they are made anew in every epoch, (epoch,
            number) of each, int64 [n, 2].
        max_tokens: of a row.
        padded: see `micro_batches`.
    """
    rows = []
    numbers = share if share.ndim == 1 else share[:, 1]
    for chosen in micro_batches(windows.lengths[numbers], max_tokens=max_tokens, padded=padded):
        columns = windows.pack(share[chosen])
        row: dict[str, Any] = {}
        for name, column in columns.items():
            row[name] = torch.from_numpy(column)
        # Counted here: on the device it would have to be asked for.
        row["max_length"] = int(np.diff(columns["cu_seqlens"]).max(initial=0))
        rows.append(row)
    return rows


def validation_rows(
    lengths: np.ndarray, example_index: np.ndarray, max_tokens: int
) -> list[np.ndarray]:
    """Return window numbers (int64) per validation row of at most `max_tokens` tokens, each once.

    A row holds windows of similar lengths and of one chunk of CHUNK questions. So prediction, which
    holds one at a time, packs the same rows. `example_index` is each window's question, ascending.
    """
    questions = int(example_index[-1]) + 1 if len(example_index) else 0
    # The first window of each chunk, and the end of the last one.
    first_questions = np.arange(0, questions + CHUNK, CHUNK)
    edges = np.searchsorted(example_index, first_questions).tolist()
    rows: list[np.ndarray] = []
    for begin, end in itertools.pairwise(edges):
        rows += rows_of_like_lengths(lengths, begin=begin, end=end, max_tokens=max_tokens)
    return rows


def rows_of_like_lengths(
    lengths: np.ndarray, begin: int, end: int, max_tokens: int, padded: bool = False
) -> list[np.ndarray]:
    """Cut windows begin..end, shortest first, into rows (int64) of at most `max_tokens` tokens, or
    if `padded` with the padding to the longest. Padded to 20, lengths 9, 3, 8, 4 are 3, 4 and 8, 9.
    """
    # Equal lengths stay in their order, so that rows do not depend on NumPy's way of sorting.
    shortest_first = begin + np.argsort(lengths[begin:end], kind="stable")
    rows: list[list[int]] = [[]]
    row_tokens = 0  # of the last row
    for number in shortest_first.tolist():
        length = int(lengths[number])
        if padded:
            row_tokens = length * (len(rows[-1]) + 1)  # it is the longest so far
        else:
            row_tokens += length
        if rows[-1] and row_tokens > max_tokens:
            rows.append([])
            row_tokens = length
        rows[-1].append(number)
    return [np.array(row, np.int64) for row in rows if row]
