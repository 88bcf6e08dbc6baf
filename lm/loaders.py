"""Loaders of packed rows: a data rank's windows of every step, and of a validation."""

import itertools
from collections.abc import Sequence

from torch.utils.data import Dataset

from detalbert.engine.loaders import RowLoader
from lm.order import Share, WindowOrder
from lm.packed import CausalRow, pack
from lm.windows import Windows


class WindowRows(Dataset):
    """Data set of row lists, indexed by shares; prefetches remote shards in training."""

    def __init__(self, windows: Windows, max_tokens: int, order: WindowOrder | None = None) -> None:
        self.windows, self.per_row, self.order = windows, max_tokens // windows.length, order
        self.asked: list[int] = []  # shards

    def __getitem__(self, share: Share) -> list[CausalRow]:
        step, places = share
        shards = self.windows.shards
        if self.order and shards.remote and self.asked != (soon := self.order.soon(step)):
            self.asked = soon
            shards.prefetch(soon)
        groups = (places[i : i + self.per_row] for i in range(0, len(places), self.per_row))
        return [pack([self.windows[place] for place in group]) for group in groups]


def validation_loader(
    windows: Windows, limit: int | None, rank: int, ranks: int, max_tokens: int
) -> RowLoader:
    """Return a loader of every `ranks`-th of the first `limit` windows, from `rank` on, row by row.

    Every rank gets the same number of batches, some of them empty, because the ranks of a sharded
    model must run equally often.
    """
    count = min(len(windows), limit or len(windows))
    rows = WindowRows(windows, max_tokens)
    mine = itertools.islice(windows.in_order(rank, ranks), len(range(rank, count, ranks)))
    places: Sequence[tuple[int, int]] = list(mine)
    starts = range(0, len(range(0, count, ranks)), rows.per_row)
    return RowLoader(rows, [(-1, places[i : i + rows.per_row]) for i in starts])
