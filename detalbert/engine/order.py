"""Windows of each step, and of each rank in it, as a function of (seed, step).

So a restart at step s needs no loader state. Epochs continue without a gap: with 132,198 windows at
48 per step, step 2,754 holds positions 132,192..132,239, the last 6 windows of epoch 0 and the
first 42 of epoch 1.
"""

import heapq
import itertools
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
from torch.utils.data import Sampler

from detalbert.errors import UserError


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
            said = f"{global_batch_size} is no multiple of the {slots} slots; make it one"
            raise UserError(f"hyperparameters.global_batch_size: {said}")
        self.lengths, self.global_batch_size = np.asarray(lengths), global_batch_size
        self.slots, self.seed = slots, seed

    def __len__(self) -> int:
        return len(self.lengths)

    def global_batch(self, step: int) -> np.ndarray:
        """Return the window indices of step `step` (from 0), int64 [global_batch_size]."""
        first = step * self.global_batch_size
        positions = np.arange(first, first + self.global_batch_size)
        epochs, places = np.divmod(positions, len(self))
        batch = np.empty(self.global_batch_size, np.int64)
        for epoch in np.unique(epochs):
            chosen = epochs == epoch
            shuffled = _permutation(self.seed, int(epoch), len(self))  # [W]
            batch[chosen] = shuffled[places[chosen]]
        return batch

    def share(self, step: int, slot: int) -> np.ndarray:
        """Return the windows of `step` for rank `slot`, int64 [global_batch_size / slots]."""
        batch = self.global_batch(step)
        shares = spread(self.lengths[batch], self.slots, room=len(batch) // self.slots)
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
    parts: list[list[int]] = [[] for _ in range(bins)]
    open_bins = [(0, number) for number in range(bins)]
    for position in np.argsort(-lengths, kind="stable").tolist():
        tokens, number = heapq.heappop(open_bins)
        parts[number].append(position)
        if len(parts[number]) < room:
            heapq.heappush(open_bins, (tokens + int(lengths[position]), number))
    return [np.array(sorted(part), dtype=np.int64) for part in parts]


class Steps(Sampler):
    """Endless windows of one rank from `first_step` on; its length is the steps of one epoch.
    `order` is a TrainOrder, or has the same length, `global_batch_size` and `share`.
    """

    def __init__(self, order: Any, slot: int, first_step: int) -> None:
        self.order, self.slot, self.first_step = order, slot, first_step

    def __len__(self) -> int:
        return max(1, len(self.order) // self.order.global_batch_size)

    def __iter__(self) -> Iterator[Any]:
        for step in itertools.count(self.first_step):
            yield self.order.share(step, self.slot)
