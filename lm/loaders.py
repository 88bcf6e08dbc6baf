"""Loaders of packed rows: a data rank's windows of every step, and of a validation."""

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
from torch.utils.data import Dataset, Sampler

from detalbert.engine.loaders import RowLoader
from lm.order import WindowOrder
from lm.packed import CausalRow, pack
from lm.windows import Windows

Share = tuple[int, Sequence[tuple[int, int]]]  # a step (-1: validation), (shard, window) of each


class _Rows(Dataset):
    """Data set of row lists, indexed by shares; prefetches remote shards in training."""

    def __init__(self, windows: Windows, per_row: int, order: WindowOrder | None = None) -> None:
        self.windows, self.per_row, self.order = windows, per_row, order
        self.asked: list[int] = []  # shards

    def __getitem__(self, share: Share) -> list[CausalRow]:
        step, places = share
        if self.order and self.windows.shards.remote and self.asked != self.order.soon(step):
            self.asked = self.order.soon(step)
            self.windows.shards.prefetch(self.asked)
        groups = (places[i : i + self.per_row] for i in range(0, len(places), self.per_row))
        return [pack([self.windows[place] for place in group]) for group in groups]


class _Steps(Sampler):
    """Endless shares of a data rank from `first` on; its length is the steps of an epoch."""

    def __init__(self, order: WindowOrder, rank: int, ranks: int, first: int) -> None:
        self.order, self.rank, self.ranks, self.first = order, rank, ranks, first

    def __len__(self) -> int:
        return max(1, self.order.total // self.order.global_batch_size)

    def __iter__(self) -> Iterator[tuple[int, np.ndarray]]:
        for step in itertools.count(self.first):
            yield step, self.order.share(step, self.rank, self.ranks)


def train_loader(
    windows: Windows,
    order: WindowOrder,
    rank: int,
    ranks: int,
    first_step: int,
    max_tokens: int,
    num_workers: int,
    pin_memory: bool,
) -> RowLoader:
    """Return an endless loader of the row lists of data rank `rank` from `first_step` on."""
    rows = _Rows(windows, max_tokens // windows.length, order)
    return RowLoader(rows, _Steps(order, rank, ranks, first_step), num_workers, pin_memory)


def validation_loader(
    windows: Windows, limit: int | None, rank: int, ranks: int, max_tokens: int
) -> RowLoader:
    """Return a loader of every `ranks`-th of the first `limit` windows, from `rank` on, row by row.

    Every rank gets the same number of batches, some of them empty, because the ranks of a sharded
    model must run equally often.
    """
    count = min(len(windows), limit or len(windows))
    per_row = max_tokens // windows.length
    mine = itertools.islice(windows.in_order(rank, ranks), len(range(rank, count, ranks)))
    places = list(mine)
    batches = -(-len(range(0, count, ranks)) // per_row)
    shares = [(-1, places[i * per_row : (i + 1) * per_row]) for i in range(batches)]
    return RowLoader(_Rows(windows, per_row), shares)
