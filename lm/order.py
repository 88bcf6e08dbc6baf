"""Windows of each step, as a function of (seed, step), with any layout.

An epoch reads the shards in a new order, `group` of them at a time, and mixes the windows of a
group. So a machine needs at most two groups of shards at once. Epochs continue without a gap. If
sources have weights, each has such an order, and `Mixture` deals them. No permutation of windows is
stored: `permute` computes the requested places.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from detalbert.corpus.mixture import Mixture

# Of the Feistel network; even, so that each half ends as wide as it began.
_ROUNDS = 8
# A permutation of at most so many numbers is drawn at once.
_DRAWN_SIZE = 1 << 12
# A step (-1: validation), and (shard, window) of its windows.
Share = tuple[int, np.ndarray]


class WindowOrder:
    """The windows of every optimizer step, over all (data) ranks.

    Args:
        windows: numbers of windows per shard, at least one in total.
        global_batch_size: windows per step.
        seed: of the permutations of shards and windows.
        group: shards whose windows are mixed.
        ranks: data ranks among which a step's windows are distributed.
        sources: of each shard.
        weights: of each source; default: sources do not matter.
    """

    def __init__(
        self,
        windows: Sequence[int] | np.ndarray,
        global_batch_size: int,
        seed: int,
        group: int = 8,
        ranks: int = 1,
        sources: Sequence[int] = (),
        weights: Sequence[float] | None = None,
    ) -> None:
        self.windows = np.asarray(windows, np.int64)  # [shards]
        self.global_batch_size = global_batch_size
        self.ranks = ranks
        self.mixture = Mixture(weights or [1.0])
        # Without weights all shards are of one source.
        shard_sources = np.asarray(sources) if weights else np.zeros(len(self.windows), int)
        self.sources = []
        for number in range(len(self.mixture.counts)):
            shards = np.flatnonzero(shard_sources == number)
            source = _Source(
                seed=seed + (number << 64),
                group=group,
                shards=shards,
                windows=self.windows[shards],
            )
            self.sources.append(source)

    def __len__(self) -> int:
        return int(self.windows.sum())

    def step(self, step: int) -> np.ndarray:
        """Return (shard, window in it) of step `step` (from 0), int64 [global_batch_size, 2]."""
        places = np.empty((self.global_batch_size, 2), np.int64)
        for source, is_of_source, positions in self._deal(step):
            # There are no gaps between them.
            first = int(positions[0])
            last = int(positions[-1])
            places[is_of_source] = source.places(begin=first, end=last + 1)
        return places

    def _deal(self, step: int) -> Iterator[tuple["_Source", np.ndarray, np.ndarray]]:
        """Yield each source of a step's windows, which of these it owns, bool [global_batch_size],
        and their positions in its sequence, ascending, int64 [n].
        """
        owners, positions = self.mixture.deal(
            first=step * self.global_batch_size, count=self.global_batch_size
        )
        for number, source in enumerate(self.sources):
            is_of_source = owners == number
            if is_of_source.any():
                yield source, is_of_source, positions[is_of_source]

    def share(self, step: int, rank: int) -> Share:
        """Return `step`, and every `ranks`-th of its windows, from `rank` on, int64 [n, 2]. Data
        ranks' shares differ by at most one window.
        """
        return step, self.step(step)[rank :: self.ranks]


class _Group(NamedTuple):
    """A group of shards in an epoch, whose windows are mixed."""

    epoch: int
    number: int  # in its epoch
    begin: int  # position of its first window, in all epochs end to end
    shards: np.ndarray  # int64 [n]: places in the source's `shards`


class _Source(NamedTuple):
    """The endless sequence of a source's windows."""

    seed: int
    group: int
    shards: np.ndarray  # int64 [n]: their numbers
    windows: np.ndarray  # int64 [n]: of each of these

    def places(self, begin: int, end: int) -> np.ndarray:
        """Return (shard, window) of positions begin .. end - 1, int64 [end - begin, 2]. In a group
        of sizes 3 and 2, number 3 of the five windows is the first of the second shard.
        """
        parts = []
        while begin < end:
            group = self._find_group(begin)
            sizes = self.windows[group.shards]
            ends = np.cumsum(sizes)  # of the group's shards, in its windows
            size = int(ends[-1])
            stop = min(end, group.begin + size)

            # Mix the windows of the group, and compute those that are requested alone.
            rng = np.random.default_rng([self.seed, group.epoch, 1 + group.number])
            requested = np.arange(begin - group.begin, stop - group.begin, dtype=np.uint64)
            numbers = permute(requested, size=size, rng=rng).astype(np.int64)  # [n]

            # Find each window's shard, and its number there.
            shards = np.searchsorted(ends, numbers, side="right")  # [n]
            windows = numbers - (ends - sizes)[shards]
            shard_numbers = self.shards[group.shards][shards]
            parts.append(np.stack([shard_numbers, windows], axis=1))
            begin = stop
        return np.concatenate(parts)

    def _find_group(self, position: int) -> _Group:
        """Return the group of a position in all epochs end to end."""
        # Epochs follow each other without a gap.
        epoch_size = int(self.windows.sum())
        epoch, position_in_epoch = divmod(position, epoch_size)
        shards, ends = _epoch(self.seed, epoch, self.group, self.windows.tobytes())
        number = int(np.searchsorted(ends, position_in_epoch, side="right"))
        begin_in_epoch = int(ends[number - 1]) if number else 0
        first_shard = number * self.group
        return _Group(
            epoch=epoch,
            number=number,
            begin=epoch * epoch_size + begin_in_epoch,
            shards=shards[first_shard : first_shard + self.group],
        )


@lru_cache(maxsize=4)
def _epoch(seed: int, epoch: int, group: int, windows: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Return the shards in the order of `epoch`, int64 [shards], and the number of its windows up
    to the end of each group, int64 [groups].
    """
    # `windows` are bytes, since a cache needs hashable arguments.
    sizes = np.frombuffer(windows, np.int64)
    rng = np.random.default_rng([seed, epoch, 0])
    shards = rng.permutation(len(sizes))
    first_shards = np.arange(0, len(sizes), group)
    group_sizes = np.add.reduceat(sizes[shards], first_shards)
    return shards, np.cumsum(group_sizes)


def permute(places: np.ndarray, size: int, rng: np.random.Generator) -> np.ndarray:
    """Return the values at `places` of a permutation of 0..size - 1 drawn from `rng`, uint64 [n].

    A Feistel network (Luby and Rackoff 1988, doi:10.1137/0217022) permutes the numbers of as many
    bits as `size` needs; one outside the range is permuted again (Black and Rogaway 2002, "Ciphers
    with Arbitrary Finite Domains"). Small sizes are drawn, as its permutations are not uniform.
    """
    if size <= _DRAWN_SIZE:
        return rng.permutation(size).astype(np.uint64)[places]
    # Every rank computes the places that it needs alone, whatever the size.
    bits = (size - 1).bit_length()
    keys = rng.integers(0, 1 << 64, size=_ROUNDS, dtype=np.uint64)
    numbers = _feistel(places, bits=bits, keys=keys)

    # The network permutes up to twice `size` numbers: each walk ends inside the range.
    outside = np.flatnonzero(numbers >= size)
    while len(outside):
        numbers[outside] = _feistel(numbers[outside], bits=bits, keys=keys)
        outside = np.flatnonzero(numbers >= size)
    return numbers


def _feistel(numbers: np.ndarray, bits: int, keys: np.ndarray) -> np.ndarray:
    """Permute the numbers of `bits` bits; uint64 [n] both."""
    # The halves change places in each round; an odd number of bits makes one wider.
    low_bits = bits // 2
    high_bits = bits - low_bits
    left = numbers >> np.uint64(high_bits)
    right = numbers & np.uint64((1 << high_bits) - 1)
    for key in keys:
        mask = np.uint64((1 << low_bits) - 1)
        round_bits = _mix(right + key) & mask
        left, right = right, left ^ round_bits
        low_bits, high_bits = high_bits, low_bits
    return left << np.uint64(high_bits) | right


def _mix(z: np.ndarray) -> np.ndarray:
    """Apply the finalizer of SplitMix64 (Steele et al. 2014, doi:10.1145/2660193.2660195)."""
    z = (z ^ z >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ z >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return z ^ z >> np.uint64(31)
