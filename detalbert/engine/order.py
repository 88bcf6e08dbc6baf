"""Windows of each step, and of each rank in it, as a function of (seed, step).

So a restart at step s needs no loader state; the price is a permutation of all windows in memory.
Epochs continue without a gap: with 132,198 windows at 48 per step, step 2,754 holds positions
132,192..132,239, the last 6 windows of epoch 0 and the first 42 of epoch 1.
"""

import heapq
import itertools
from collections.abc import Iterator
from functools import lru_cache
from typing import Protocol

import numpy as np
from torch.utils.data import Sampler

from detalbert.errors import UserError


class Order(Protocol):
    """Order of the windows of a training: those of each step and rank."""

    @property
    def global_batch_size(self) -> int:
        """Windows per step over all ranks."""

    def __len__(self) -> int:
        """Return the windows of an epoch."""

    def share(self, step: int, slot: int, /) -> object:
        """Return what the data set packs for rank `slot` at `step`, from 0."""


class TrainOrder:
    """The windows of every optimizer step: permutations of all windows, one per epoch, end to end.

    Args:
        lengths: tokens per window, int [W].
        global_batch_size: windows per step over all ranks; must be a multiple of `slots`.
        slots: number of ranks.
        seed: of the permutations.
    """

    def __init__(self, lengths: np.ndarray, global_batch_size: int, slots: int, seed: int) -> None:
        if global_batch_size % slots:
            raise UserError(
                f"{global_batch_size} is no multiple of the {slots} slots",
                key="hyperparameters.global_batch_size",
                cure="make it one",
            )
        self.lengths = np.asarray(lengths)
        self.global_batch_size = global_batch_size
        self.slots = slots
        self.seed = seed

    def __len__(self) -> int:
        return len(self.lengths)

    def global_batch(self, step: int) -> np.ndarray:
        """Return the window indices of step `step` (from 0), int64 [global_batch_size]; a subclass
        may return (epoch, index) of each, int64 [global_batch_size, 2].
        """
        # Positions count over all epochs.
        first = step * self.global_batch_size
        positions = np.arange(first, first + self.global_batch_size)
        epochs, places = np.divmod(positions, len(self))
        batch = np.empty(self.global_batch_size, np.int64)
        for epoch in np.unique(epochs):  # two where a step has the end of one
            chosen = epochs == epoch  # bool [global_batch_size]
            # The same on every rank, which all compute it.
            shuffled = _permutation(self.seed, int(epoch), len(self))  # [W]
            batch[chosen] = shuffled[places[chosen]]
        return batch

    def share(self, step: int, slot: int) -> np.ndarray:
        """Return the windows of `step` for rank `slot`, int64 [global_batch_size / slots]."""
        # Ranks have equally many windows, and nearly equally many tokens.
        batch = self.global_batch(step)
        numbers = batch if batch.ndim == 1 else batch[:, 1]
        shares = spread(self.lengths[numbers], bins=self.slots, room=len(batch) // self.slots)
        return batch[shares[slot]]


@lru_cache(maxsize=4)
def _permutation(seed: int, epoch: int, size: int) -> np.ndarray:
    return np.random.default_rng([seed, epoch]).permutation(size)


def spread(lengths: np.ndarray, bins: int, room: int) -> list[np.ndarray]:
    """Distribute windows to bins, at most `room` to each, so that real tokens are balanced.

    The longest remaining window goes to the bin with the fewest tokens that still has room (Graham
    1969, longest processing time first); ties go to the lower index. `lengths` are tokens per
    window. Returns for each bin its positions in `lengths`, ascending, int64.
    """
    lengths = np.asarray(lengths, dtype=np.int64)
    longest_first = np.argsort(-lengths, kind="stable").tolist()
    bins_positions: list[list[int]] = [[] for _ in range(bins)]
    # Longest processing time first: small windows at the end even out the large ones.
    open_bins = [(0, number) for number in range(bins)]  # a heap of (tokens, number of the bin)
    for position in longest_first:
        tokens, number = heapq.heappop(open_bins)
        bins_positions[number].append(position)
        if len(bins_positions[number]) < room:
            tokens += int(lengths[position])
            heapq.heappush(open_bins, (tokens, number))
    return [np.array(sorted(positions), dtype=np.int64) for positions in bins_positions]


class Steps(Sampler):
    """Endless windows of one rank from `first_step` on; its length is the steps of one epoch."""

    def __init__(self, order: Order, slot: int, first_step: int) -> None:
        self.order = order
        self.slot = slot
        self.first_step = first_step

    def __len__(self) -> int:
        return max(1, len(self.order) // self.order.global_batch_size)

    def __iter__(self) -> Iterator[object]:
        for step in itertools.count(self.first_step):
            yield self.order.share(step, self.slot)
