"""Windows cut into packed rows: a step's micro-batches, and the rows of a validation.

A batch is one slot's share of one optimizer step, as a list of packed rows (micro-batches).
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
    """One slot's windows cut into micro-batches of at most `max_tokens` real tokens each.

    Tries the fewest bins that the total allows, spread evenly, and one bin more until all fit.

    Args: lengths: tokens per window, any integer type [n]; n may be 0.
    Returns: per micro-batch its positions in `lengths`, ascending, int64; every position once.
    Raises UserError for a window longer than `max_tokens`.
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
    """`share` (window indices, int64 [n]) as packed rows of at most `max_tokens` real tokens."""
    rows = []
    for chosen in micro_batches(windows.lengths[share], max_tokens):
        columns = windows.pack(share[chosen])
        row = cast(SquadRow, {name: torch.from_numpy(column) for name, column in columns.items()})
        row["max_length"] = int(windows.lengths[share[chosen]].max(initial=0))
        rows.append(row)
    return rows


def validation_rows(windows: Windows, max_tokens: int) -> list[np.ndarray]:
    """Every window once, as rows of window numbers (int64) of at most `max_tokens` tokens.

    A row holds windows of like lengths, and of questions of one chunk: CHUNK questions in file
    order. So a reader that holds one chunk at a time packs the same rows, and gets the same bits.
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
    """Windows begin..end, shortest first, cut into rows of at most `max_tokens` tokens (int64)."""
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
