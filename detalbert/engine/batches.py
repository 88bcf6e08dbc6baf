"""Which windows a step trains on, which slot gets which of them, and the loaders that fetch them.

A batch is one slot's share of one optimizer step, cut into packed rows (micro-batches). Everything
is a function of (seed, step), so a restart at step s needs no loader state. Epochs run on without
a seam: with 132,198 windows at 48 a step, step 2,754 holds positions 132,192..132,239, the last 6
windows of epoch 0 and the first 42 of epoch 1.
"""

import os

import numpy as np
import torch
from torch.utils.data import Dataset

from detalbert.engine.order import Steps, TrainOrder, spread
from detalbert.engine.rows import Row, RowLoader
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


def pack_rows(windows: Windows, share: np.ndarray, max_tokens: int) -> list[Row]:
    """`share` (window indices, int64 [n]) as packed rows of at most `max_tokens` real tokens."""
    rows = []
    for chosen in micro_batches(windows.lengths[share], max_tokens):
        row: Row = {name: torch.from_numpy(x) for name, x in windows.pack(share[chosen]).items()}
        row["max_length"] = int(windows.lengths[share[chosen]].max(initial=0))
        rows.append(row)
    return rows


class _Packed(Dataset):
    """Indexed by arrays of window numbers, gives lists of packed rows."""

    def __init__(self, windows: Windows, max_tokens: int) -> None:
        self.windows = windows
        self.max_tokens = max_tokens

    def __getitem__(self, share: np.ndarray) -> list[Row]:
        return pack_rows(self.windows, share, self.max_tokens)


def default_workers(processes: int) -> int:
    """Loader processes for each of `processes` slots on this machine: none where a slot has one
    core to itself, else one core less than it has, and 4 at most, which no GPU outruns."""
    cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):  # of Linux: what a container may use of them
        cores = len(os.sched_getaffinity(0))
    return min(4, max(0, cores // processes - 1))


def train_loader(
    windows: Windows,
    order: TrainOrder,
    slot: int,
    first_step: int,
    max_tokens: int,
    num_workers: int,
    pin_memory: bool,
) -> RowLoader:
    """Batches (lists of rows) of `slot` from optimizer step `first_step` on, without end."""
    packed = _Packed(windows, max_tokens)
    return RowLoader(packed, Steps(order, slot, first_step), num_workers, pin_memory)


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


def validation_loader(windows: Windows, slots: int, slot: int, max_tokens: int) -> RowLoader:
    """The validation rows of `slot`: row i goes to slot i mod slots.

    The rows are the same at every number of slots, so the logits are too. A slot without a row
    gets one empty batch, since Determined refuses an empty loader.
    """
    mine = validation_rows(windows, max_tokens)[slot::slots] or [np.empty(0, np.int64)]
    return RowLoader(_Packed(windows, max_tokens), mine)
