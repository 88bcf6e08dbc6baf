"""Shares of several sources: of training by weights, of a capped validation by sizes.

The source of a position is computed from the position alone, not drawn: a run that resumes at step
100,000 needs neither a random state nor the steps before. The price is a fixed pattern, the same in
each cycle.
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from detalbert.squad.encoding import ranges

# Positions; weights are exact up to it, and within 1e-12 beyond.
_LONGEST_CYCLE = 1 << 40


class Dealt(NamedTuple):
    """The windows at `count` positions in a row."""

    sources: np.ndarray  # int64 [count]
    numbers: np.ndarray  # int64 [count], of each window in its source's own endless sequence


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
        shares = [weight / sum(decimals) for weight in decimals]

        # The positions after which the pattern repeats, and a source's windows in them, int64 [S].
        # Both are exact, except in the longest cycle.
        cycle = math.lcm(*(share.denominator for share in shares))
        self.cycle = min(cycle, _LONGEST_CYCLE)
        self.counts = apportion(list(map(float, shares)), total=self.cycle)

    def deal(self, first: int, count: int) -> Dealt:
        """Return the windows of positions first .. first + count - 1. Those of one source have no
        gaps.

        Time and memory are those of `count` positions, wherever these are: up to time t about t
        windows are due, so only those near this stretch of time are put in order.
        """
        # At most half a window per source is due too early or too late; one more may be due at the
        # same time as the stretch begins or ends.
        margin = 2 * len(self.counts)
        before = self._due(first - margin)  # int64 [S], as `after`
        after = self._due(first + count + margin)

        # The windows that are due in this stretch, source by source, int64 [n].
        due = after - before
        numbers = ranges(before, lengths=due)
        sources = np.repeat(np.arange(len(due)), due)

        # The windows at the positions asked for, in the order in which they are due.
        order = self._sort(sources, numbers)
        begin = first - before.sum()
        chosen = order[begin : begin + count]
        return Dealt(sources=sources[chosen], numbers=numbers[chosen])

    def _sort(self, sources: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """Return the order in which windows are due, int64 [n].

        The time within a cycle is computed from its beginning, so that it is the same in each.
        """
        counts = self.counts[sources]
        cycles, places = np.divmod(numbers, counts)
        times = (places + 0.5) / counts
        return np.lexsort((sources, times, cycles))  # by the last one first

    def _due(self, time: int) -> np.ndarray:
        """Return how many windows of each source are due until `time`, in positions, int64 [S]."""
        time = max(int(time), 0)
        due = []
        for count in self.counts.tolist():
            # Window i is due if (i + 1/2) cycle / count <= time; in whole numbers of any size.
            halves = 2 * time * count + self.cycle
            due.append(halves // (2 * self.cycle))
        return np.array(due, dtype=np.int64)


def apportion(weights: Sequence[float], total: int) -> np.ndarray:
    """Return whole numbers that add up to `total`, in proportion to `weights`, int64 [S]; those
    that are rounded down most get one more.
    """
    shares = np.asarray(weights, dtype=np.float64) / sum(weights)
    exact = shares * total
    counts = np.floor(exact + 1e-9).astype(np.int64)
    missing = total - counts.sum()
    rounded_most = np.argsort(counts - exact, kind="stable")
    one_more = rounded_most[:missing]
    counts[one_more] += 1
    return counts


def draw_windows(sources: np.ndarray, limit: int | None) -> list[np.ndarray]:
    """Return the windows of each source that a validation takes, ascending, int64: at most `limit`
    in all, of each source in proportion, chosen by the numbers alone.

    Args:
        sources: of every window, int [W].
    """
    windows = [np.flatnonzero(sources == number) for number in range(sources.max(initial=0) + 1)]
    if limit is None or limit >= len(sources):
        return windows

    # The sizes decide the shares, the source's number the draw.
    sizes = list(map(len, windows))
    counts = apportion(sizes, total=limit)
    drawn = []
    for source, (numbers, count) in enumerate(
        zip(
            windows,
            counts,
            strict=True,
        )
    ):
        rng = np.random.default_rng([source])
        chosen = rng.choice(
            numbers,
            size=count,
            replace=False,
        )
        drawn.append(np.sort(chosen))
    return drawn


def name_scores(scores: Sequence[str], names: Sequence[str]) -> set[str]:
    """Return the names of the scores of each of two to six sources; of more there is no chart."""
    if not 2 <= len(names) <= 6:
        return set()
    return {f"{score}_{name}" for name in names for score in scores}
