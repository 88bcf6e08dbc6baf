"""Packed rows from windows: a step's micro-batches, and the rows of a validation.

A batch is one rank's windows of one optimizer step, as a list of packed rows (micro-batches).
"""

from typing import cast

import numpy as np
import torch

from detalbert.engine.order import spread
from detalbert.engine.rows import SquadRow
from detalbert.errors import UserError
from detalbert.squad.windows import Windows

CHUNK = 512  # questions whose windows validation packs together; sets what prediction holds


def micro_batches(lengths: np.ndarray, max_tokens: int) -> list[np.ndarray]:
    """Split one rank's windows into micro-batches of at most `max_tokens` real tokens each.

    Tries the fewest bins that the total allows, filled evenly, then one more until all fit.
    `lengths` are tokens per window, any integer type [n]; n may be 0. Returns positions in
    `lengths` per micro-batch, ascending, int64, every position once. Raises UserError if a window
    is longer than `max_tokens`.
    """
    lengths = np.asarray(lengths, dtype=np.int64)
    if not len(lengths):
        return []
    if lengths.max() > max_tokens:
        raise UserError(
            f"hyperparameters.max_tokens_per_forward: {max_tokens} is less than one window of "
            f"{lengths.max()} tokens; raise it"
        )
    bins = max(1, -(-int(lengths.sum()) // max_tokens))
    while True:
        parts = spread(lengths, bins, room=len(lengths))
        if max(int(lengths[part].sum()) for part in parts) <= max_tokens:
            return parts
        bins += 1


def pack_rows(windows: Windows, share: np.ndarray, max_tokens: int) -> list[SquadRow]:
    """Pack the windows `share` (indices, int64 [n]) in rows of at most `max_tokens` real tokens."""
    rows = []
    for chosen in micro_batches(windows.lengths[share], max_tokens):
        columns = windows.pack(share[chosen])
        row = cast(SquadRow, {name: torch.from_numpy(column) for name, column in columns.items()})
        row["max_length"] = int(windows.lengths[share[chosen]].max(initial=0))
        rows.append(row)
    return rows


def validation_rows(windows: Windows, max_tokens: int) -> list[np.ndarray]:
    """Return window indices (int64) per validation row of at most `max_tokens` tokens, each once.

    A row holds windows of similar lengths and of questions of one chunk: CHUNK questions in file
    order. So prediction, which holds one chunk at a time, packs rows with bitwise identical
    results.
    """
    questions = int(windows.example_index[-1]) + 1 if len(windows) else 0
    edges = np.searchsorted(windows.example_index, np.arange(0, questions + CHUNK, CHUNK))
    rows: list[np.ndarray] = []
    for begin, end in zip(edges, edges[1:], strict=False):
        rows += rows_of_like_lengths(windows.lengths, int(begin), int(end), max_tokens)
    return rows


def rows_of_like_lengths(
    lengths: np.ndarray, begin: int, end: int, max_tokens: int
) -> list[np.ndarray]:
    """Cut windows begin..end, shortest first, into rows of at most `max_tokens` tokens (int64)."""
    rows = []
    by_length = begin + np.argsort(lengths[begin:end], kind="stable")
    ends = np.cumsum(lengths[by_length], dtype=np.int64)
    first = 0
    while first < len(by_length):
        before = ends[first] - lengths[by_length[first]]
        last = int(np.searchsorted(ends, before + max_tokens, side="right"))
        rows.append(by_length[first:last])
        first = last
    return rows
