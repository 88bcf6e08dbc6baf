"""Shares of several sources: of training by weights, of a capped validation by sizes."""

import itertools
import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

_LONGEST_CYCLE = 1 << 40  # positions; weights are exact up to it, and within 1e-12 beyond


class Mixture:
    """The source of every position of a training, as a function of the position.

    Window i of a source with share w is due at time (i + 1/2) / w, and windows are dealt in the
    order in which they are due; of two at the same time, that of the first source. Weights 0.5, 0.3
    and 0.2 give ten positions the sources 0 1 0 2 0 1 0 2 1 0, again and again.

    So the first n positions have n w windows of a source, give or take 1/2 + w (S - 2) / 2 of S
    sources: at most 2 of up to five. A source resumes where it stopped, and begins again when it
    has run out.

    Args:
        weights: of each source, in any unit; decimals are taken as they are written.
    """

    def __init__(self, weights: Sequence[float]) -> None:
        decimals = [Fraction(str(weight)) for weight in weights]
        total = sum(decimals)
        shares = [weight / total for weight in decimals]

        # The positions after which the pattern repeats, and a source's windows in them, int64 [S].
        # Both are exact, except in the longest cycle.
        cycle = 1
        for share in shares:
            cycle = math.lcm(cycle, share.denominator)
        self.cycle = min(cycle, _LONGEST_CYCLE)
        rounded = [float(share) for share in shares]
        self.counts = apportion(rounded, self.cycle)

    def deal(self, first: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the sources of positions first .. first + count - 1, and which window in its own
        endless sequence each is, int64 [count] both. Those of one source have no gaps.

        Time and memory are those of `count` positions, wherever these are: up to time t about t
        windows are due, so only those near this stretch of time are put in order.
        """
        # At most half a window per source is due too early or too late; one more may be due at the
        # same time as the stretch begins or ends.
        margin = 2 * len(self.counts)
        before = self._due(first - margin)  # int64 [S], as `after`
        after = self._due(first + count + margin)

        # The windows that are due in this stretch, source by source, int64 [n].
        ranges = map(np.arange, before, after)
        numbers = np.concatenate(list(ranges))
        sources = np.arange(len(before))
        sources = np.repeat(sources, after - before)

        # The time within a cycle is computed from its beginning, so that it is the same in each.
        counts = self.counts[sources]
        cycles, places = np.divmod(numbers, counts)
        times = (places + 0.5) / counts
        keys = sources, times, cycles  # the last one sorts first
        order = np.lexsort(keys)
        begin = first - before.sum()
        order = order[begin : begin + count]
        return sources[order], numbers[order]

    def _due(self, time: int) -> np.ndarray:
        """Return how many windows of each source are due until `time`, in positions, int64 [S]."""
        time = max(int(time), 0)
        due = np.zeros_like(self.counts)
        for source, count in enumerate(self.counts.tolist()):
            # (i + 1/2) cycle / count <= time, in whole numbers of any size
            halves = 2 * time * count + self.cycle
            due[source] = halves // (2 * self.cycle)
        return due


def apportion(weights: Sequence[float], total: int) -> np.ndarray:
    """Return whole numbers that add up to `total`, in proportion to `weights`, int64 [S]; those
    that are rounded down most get one more.
    """
    shares = np.asarray(weights, np.float64) / sum(weights)
    exact = shares * total
    counts = np.floor(exact + 1e-9).astype(np.int64)
    missing = total - counts.sum()
    by_loss = np.argsort(counts - exact, kind="stable")  # rounded down most first
    counts[by_loss[:missing]] += 1
    return counts


def draw_windows(sources: np.ndarray, limit: int | None) -> list[np.ndarray]:
    """Return the windows of each source that a validation takes, ascending, int64: at most `limit`
    in all, of each source in proportion, chosen by the numbers alone.

    Args:
        sources: of every window, int [W].
    """
    count = sources.max(initial=0) + 1
    windows = [np.flatnonzero(sources == source) for source in range(count)]
    if limit is None or limit >= len(sources):
        return windows
    sizes = [len(numbers) for numbers in windows]
    counts = apportion(sizes, limit)
    drawn = []
    for source, numbers in enumerate(windows):
        rng = np.random.default_rng([source])
        chosen = rng.choice(numbers, counts[source], replace=False)
        drawn.append(np.sort(chosen))
    return drawn


def name_scores(scores: Sequence[str], names: Sequence[str]) -> set[str]:
    """Return the names of the scores of each of two to six sources; of more there is no chart."""
    if not 1 < len(names) <= 6:
        return set()
    pairs = itertools.product(scores, names)
    return {f"{score}_{name}" for score, name in pairs}
