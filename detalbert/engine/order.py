"""Windows of each step, and of each rank in it, as a function of (seed, step).

So a restart at step s needs no loader state; the price is a permutation of all windows in memory,
8 bytes for each.
Epochs continue without a gap: with 132,198 windows at 48 per step, step 2,754 holds positions
132,192..132,239, the last 6 windows of epoch 0 and the first 42 of epoch 1.
"""

import heapq
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
from torch.utils.data import Sampler

from detalbert.corpus.mixture import Mixture
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
        optional: windows of which `left_out` are left out of each epoch, drawn by the seed.
        left_out: their number.
    """

    def __init__(
        self,
        lengths: np.ndarray,
        global_batch_size: int,
        slots: int,
        seed: int,
        optional: Sequence[int] | np.ndarray = (),
        left_out: int = 0,
    ) -> None:
        if global_batch_size % slots:
            raise UserError(
                f"{global_batch_size} is no multiple of the {slots} slots",
                key="hyperparameters.global_batch_size",
                cure="make it one",
            )
        self.lengths = lengths
        self.global_batch_size = global_batch_size
        self.slots = slots
        self.seed = seed
        self.optional = optional
        self.left_out = left_out
        # The same on every rank, which all compute it. A step may need two epochs.
        self.permutation = lru_cache(maxsize=2)(self._permute)

    def __len__(self) -> int:
        return len(self.lengths) - self.left_out

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
            batch[chosen] = self.permutation(int(epoch))[places[chosen]]
        return batch

    def _permute(self, epoch: int) -> np.ndarray:
        """Return the windows of an epoch in its order, int64 [len(self)]."""
        shuffled = np.random.default_rng([self.seed, epoch]).permutation(len(self.lengths))  # [W]
        # In a shuffled order those that come first are a random sample.
        places = np.flatnonzero(np.isin(shuffled, self.optional))
        return np.delete(shuffled, places[: self.left_out])

    def share(self, step: int, slot: int) -> np.ndarray:
        """Return the windows of `step` for rank `slot`, int64 [global_batch_size / slots]."""
        # Ranks have equally many windows, and nearly equally many tokens.
        batch = self.global_batch(step)
        numbers = batch if batch.ndim == 1 else batch[:, 1]
        shares = spread(self.lengths[numbers], bins=self.slots, room=len(batch) // self.slots)
        return batch[shares[slot]]


class ShardOrder:
    """The windows of every step, if they lie in token shards. An epoch reads the shards in a new
    order, `group` of them at a time, and mixes the windows of a group. So a machine needs at most
    two groups at once. Sources with weights are each read so, and dealt by `Mixture`.

    Args:
        bounds: int64 [shards + 1]: the first window of every shard, and the number of all.
        sources: of each shard.
        weights: of each source; None: all shards are of one source.
        global_batch_size: windows per step.
        seed: of the permutations.
        group: shards whose windows are mixed.
    """

    def __init__(
        self,
        bounds: np.ndarray,
        sources: Sequence[int],
        weights: Sequence[float] | None,
        global_batch_size: int,
        seed: int,
        group: int,
    ) -> None:
        self.bounds = bounds
        self.global_batch_size = global_batch_size
        self.seed = seed
        self.group = group
        self.shard_sources = np.array(sources) if weights else np.zeros(len(bounds) - 1, np.int64)
        weights = weights or [1.0]
        self.mixture = Mixture(weights)
        shard_sizes = np.diff(bounds)
        self.sizes = np.bincount(self.shard_sources, shard_sizes, len(weights)).astype(np.int64)
        # A step may need two epochs of each source.
        self.permutation = lru_cache(maxsize=2 * len(weights))(self._permute)

    def __len__(self) -> int:
        return int(self.bounds[-1])

    def global_batch(self, step: int) -> np.ndarray:
        """Return (epoch of its source, number) of the windows of `step`, int64 [B, 2]."""
        sources, positions = self.mixture.deal(
            first=step * self.global_batch_size, count=self.global_batch_size
        )  # [B] each
        # Each source begins a new epoch when all its windows were dealt.
        epochs, places = np.divmod(positions, self.sizes[sources])
        numbers = np.empty_like(places)
        for epoch, source in set(zip(epochs.tolist(), sources.tolist(), strict=True)):
            chosen = (sources == source) & (epochs == epoch)
            order = self.permutation(epoch, source)
            numbers[chosen] = order[places[chosen]]
        return np.stack([epochs, numbers], axis=1)

    def _permute(self, epoch: int, source: int) -> np.ndarray:
        """Return the numbers of a source's windows in the order of its `epoch`, int64 [n]."""
        seed = self.seed + (source << 64)
        # The shards in a new order.
        shards = np.flatnonzero(self.shard_sources == source)
        rng = np.random.default_rng([seed, epoch, 1])
        shards = rng.permutation(shards)

        # The windows of each group of them, mixed.
        rng = np.random.default_rng([seed, epoch])
        mixed = []
        for start in range(0, len(shards), self.group):
            windows = []
            for shard in shards[start : start + self.group]:
                begin = self.bounds[shard]
                end = self.bounds[shard + 1]
                windows.append(np.arange(begin, end))
            group = np.concatenate(windows)
            mixed.append(rng.permutation(group))
        return np.concatenate(mixed)


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


@dataclass(eq=False)
class Steps(Sampler):
    """Endless windows of one rank from `first_step` on; its length is the steps of one epoch."""

    order: Order
    slot: int
    first_step: int

    def __len__(self) -> int:
        return max(1, len(self.order) // self.order.global_batch_size)

    def __iter__(self) -> Iterator[object]:
        for step in itertools.count(self.first_step):
            yield self.order.share(step, self.slot)
