"""Which windows a step trains on: a function of (seed, step), at any layout.

Two levels: an epoch reads the shards in a new order, `group` of them at a time, and mixes the
windows of a group. So a process holds the order of one or two groups, a machine one or two groups
of shards, however much text there is. Epochs run on without a seam.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np


class _Group(NamedTuple):
    """Windows that are mixed."""

    epoch: int
    number: int  # in the epoch
    shards: tuple[int, ...]
    sizes: tuple[int, ...]  # windows of each of these


class WindowOrder:
    """The windows of every optimizer step.

    Args:
        windows: of each shard, how many; one at least in all.
        global_batch_size: windows per step over all ranks.
        seed: of the permutations.
        group: shards whose windows are mixed.
    """

    def __init__(
        self, windows: Sequence[int], global_batch_size: int, seed: int, group: int = 8
    ) -> None:
        self.windows = np.asarray(windows, np.int64)  # [shards]
        self.total = int(self.windows.sum())  # windows of an epoch
        self.global_batch_size, self.seed, self.group = global_batch_size, seed, group

    def step(self, step: int) -> np.ndarray:
        """(shard, window in it) of step `step` (from 0), in order, int64 [global_batch_size, 2]."""
        first = step * self.global_batch_size
        parts, at, end = [], first, first + self.global_batch_size
        while at < end:
            group, begin = self._find(at)
            stop = min(end, begin + sum(group.sizes))
            parts.append(_places(self.seed, group, slice(at - begin, stop - begin)))
            at = stop
        return np.concatenate(parts)

    def share(self, step: int, rank: int, ranks: int) -> np.ndarray:
        """The windows of `step` for data rank `rank`: every `ranks`-th, int64 [n, 2]. Shares
        differ by one window at most."""
        return self.step(step)[rank::ranks]

    def soon(self, step: int) -> list[int]:
        """The shards that `step` and the steps after it need: its group's and the next one's."""
        last = (step + 1) * self.global_batch_size - 1
        group, begin = self._find(last)
        following, _ = self._find(begin + sum(group.sizes))
        return [*dict.fromkeys((*group.shards, *following.shards))]

    def _find(self, position: int) -> tuple[_Group, int]:
        """The group of a place in the row of all epochs, and the group's first place."""
        epoch, at = divmod(position, self.total)
        shards, ends = _epoch(self.seed, epoch, self.group, self.windows.tobytes())
        number = int(np.searchsorted(ends, at, side="right"))
        begin = epoch * self.total + (int(ends[number - 1]) if number else 0)
        mine = shards[number * self.group : (number + 1) * self.group]
        sizes = tuple(self.windows[mine].tolist())
        return _Group(epoch, number, tuple(mine.tolist()), sizes), begin


@lru_cache(maxsize=4)
def _epoch(seed: int, epoch: int, group: int, windows: bytes) -> tuple[np.ndarray, np.ndarray]:
    """The shards in the order of `epoch`, int64 [shards], and how many windows come before the end
    of each group, int64 [groups]."""
    sizes = np.frombuffer(windows, np.int64)
    shards = np.random.default_rng([seed, epoch, 0]).permutation(len(sizes))
    return shards, np.cumsum(np.add.reduceat(sizes[shards], np.arange(0, len(sizes), group)))


@lru_cache(maxsize=2)
def _permutation(seed: int, epoch: int, number: int, size: int) -> np.ndarray:
    """Numbers 0..size - 1 in the order of a group, uint32 [size]; a group with 2**32 windows would
    hold a trillion tokens."""
    numbers = np.arange(size, dtype=np.uint32)
    np.random.default_rng([seed, epoch, 1 + number]).shuffle(numbers)
    return numbers


def _places(seed: int, group: _Group, chosen: slice) -> np.ndarray:
    """(shard, window) of some places of a group, int64 [n, 2].

    Sizes 3 and 2: number 3 of the five windows is the first of the second shard.
    """
    ends = np.cumsum(group.sizes)
    numbers = _permutation(seed, group.epoch, group.number, int(ends[-1]))[chosen].astype(np.int64)
    which = np.searchsorted(ends, numbers, side="right")  # [n]
    windows = numbers - (ends - group.sizes)[which]
    return np.stack([np.array(group.shards)[which], windows], axis=1)
