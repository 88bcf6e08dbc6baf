"""Windows of each step, as a function of (seed, step), with any layout.

An epoch reads the shards in a new order, `group` of them at a time, and mixes the windows of a
group. So a machine needs at most two groups of shards at once. Epochs continue without a gap. If
sources have weights, each has such an order, and `Mixture` deals them. No permutation of windows is
stored: `permute` computes the requested places.
"""

import itertools
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from detalbert.corpus.mixture import Mixture

_ROUNDS = 8
_FEW = 1 << 12
Share = tuple[int, Any]  # a step (-1: validation), and (shard, window) of each of its windows


class WindowOrder:
    """The windows of every optimizer step, `global_batch_size` over all (data) `ranks`.

    `windows` are the numbers of windows per shard, at least one in total; those of `group` shards
    are mixed. `sources`, of each shard, are mixed by `weights`, of each source, if there are any.
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
        self.global_batch_size, self.group, self.ranks = global_batch_size, group, ranks
        self.mixture = Mixture(weights or [1.0])
        owner = np.asarray(sources) if weights else np.zeros(len(self.windows), int)
        shards = [np.flatnonzero(owner == number) for number in range(len(self.mixture.counts))]
        self.sources = [
            _Source(seed + (number << 64), group, mine, self.windows[mine])
            for number, mine in enumerate(shards)
        ]

    def __len__(self) -> int:
        return int(self.windows.sum())

    def step(self, step: int) -> np.ndarray:
        """Return (shard, window in it) of step `step` (from 0), int64 [global_batch_size, 2]."""
        places = np.empty((self.global_batch_size, 2), np.int64)
        for source, mine, numbers in self._deal(step):
            places[mine] = source.places(int(numbers[0]), int(numbers[-1]) + 1)
        return places

    def _deal(self, step: int) -> Iterator[tuple["_Source", np.ndarray, np.ndarray]]:
        """Yield each source of a step's windows, which of these it owns, bool [global_batch_size],
        and their numbers in its sequence, ascending, int64 [n].
        """
        first = step * self.global_batch_size
        owners, numbers = self.mixture.deal(first, self.global_batch_size)
        for number, source in enumerate(self.sources):
            if (mine := owners == number).any():
                yield source, mine, numbers[mine]

    def share(self, step: int, rank: int) -> Share:
        """Return `step`, and every `ranks`-th of its windows, from `rank` on, int64 [n, 2]. Data
        ranks' shares differ by at most one window.
        """
        return step, self.step(step)[rank :: self.ranks]

    def soon(self, step: int) -> list[int]:
        """Return the shards of the groups that `step` and the steps after it need."""
        found = [source.soon(int(numbers[-1])) for source, _, numbers in self._deal(step)]
        return [*dict.fromkeys(itertools.chain(*found))]


class _Source(NamedTuple):
    """The endless sequence of a source's windows."""

    seed: int
    group: int
    shards: np.ndarray  # int64 [n]: their numbers
    windows: np.ndarray  # int64 [n]: of each of these

    def places(self, at: int, end: int) -> np.ndarray:
        """Return (shard, window) of positions at .. end - 1, int64 [end - at, 2]. In a group of
        sizes 3 and 2, number 3 of the five windows is the first of the second shard.
        """
        parts = []
        while at < end:
            epoch, number, begin, group = self._find(at)
            sizes = self.windows[group]
            ends = np.cumsum(sizes)
            stop = min(end, begin + int(ends[-1]))
            rng = np.random.default_rng([self.seed, epoch, 1 + number])
            wanted = np.arange(at - begin, stop - begin, dtype=np.uint64)
            numbers = permute(wanted, int(ends[-1]), rng).astype(np.int64)  # [n]
            which = np.searchsorted(ends, numbers, side="right")  # [n]
            windows = numbers - (ends - sizes)[which]
            parts.append(np.stack([self.shards[group][which], windows], axis=1))
            at = stop
        return np.concatenate(parts)

    def soon(self, position: int) -> list[int]:
        """Return the shards of the group of a position, and of the next group."""
        _, _, begin, group = self._find(position)
        following = self._find(begin + int(self.windows[group].sum()))[-1]
        return self.shards[np.concatenate([group, following])].tolist()

    def _find(self, position: int) -> tuple[int, int, int, np.ndarray]:
        """Return the epoch of a position in all epochs end to end; the number of its group there,
        its first position, and its places in `shards`: the windows of these are mixed.
        """
        size = int(self.windows.sum())
        epoch, at = divmod(position, size)
        order, ends = _epoch(self.seed, epoch, self.group, self.windows.tobytes())
        number = int(np.searchsorted(ends, at, side="right"))
        begin = epoch * size + (int(ends[number - 1]) if number else 0)
        return epoch, number, begin, order[number * self.group : (number + 1) * self.group]


@lru_cache(maxsize=4)
def _epoch(seed: int, epoch: int, group: int, windows: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Return the shards in the order of `epoch`, int64 [shards], and the number of its windows up
    to the end of each group, int64 [groups].
    """
    sizes = np.frombuffer(windows, np.int64)
    shards = np.random.default_rng([seed, epoch, 0]).permutation(len(sizes))
    return shards, np.cumsum(np.add.reduceat(sizes[shards], np.arange(0, len(sizes), group)))


def permute(places: np.ndarray, size: int, rng: np.random.Generator) -> np.ndarray:
    """Return the values at `places` of a permutation of 0..size - 1 drawn from `rng`, uint64 [n].

    A Feistel network (Luby and Rackoff 1988, doi:10.1137/0217022) permutes the numbers of as many
    bits as `size` needs; one outside the range is permuted again (Black and Rogaway 2002, "Ciphers
    with Arbitrary Finite Domains"). Small sizes are drawn, as its permutations are not uniform.
    """
    if size <= _FEW:
        return rng.permutation(size).astype(np.uint64)[places]
    bits = (size - 1).bit_length()
    keys = rng.integers(0, 1 << 64, _ROUNDS, np.uint64)
    numbers = _feistel(places, bits, keys)
    while len(outside := np.flatnonzero(numbers >= size)):
        numbers[outside] = _feistel(numbers[outside], bits, keys)
    return numbers


def _feistel(numbers: np.ndarray, bits: int, keys: np.ndarray) -> np.ndarray:
    """Permute the numbers of `bits` bits; uint64 [n] both."""
    low, high = bits // 2, bits - bits // 2  # bits of the two halves, which change places
    left, right = numbers >> np.uint64(high), numbers & np.uint64((1 << high) - 1)
    for key in keys:  # an even number: each half ends with the bits that it began with
        left, right = right, left ^ (_mix(right + key) & np.uint64((1 << low) - 1))
        low, high = high, low
    return left << np.uint64(high) | right


def _mix(z: np.ndarray) -> np.ndarray:
    """Apply the finalizer of SplitMix64 (Steele et al. 2014, doi:10.1145/2660193.2660195)."""
    z = (z ^ z >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ z >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return z ^ z >> np.uint64(31)
