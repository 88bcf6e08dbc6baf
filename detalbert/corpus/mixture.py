"""Shares of several sources: of training by weights, of a capped validation by sizes.

The source of a position is computed from the position alone, not drawn: a run that resumes at step
100,000 needs neither a random state nor the steps before. The price is a fixed pattern, the same in
each cycle.
"""

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from detalbert.squad.encoding import ranges

# Positions; weights are exact up to it, and within 1e-12 beyond.
_LONGEST_CYCLE = 1 << 40


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
        denominators = [share.denominator for share in shares]
        cycle = math.lcm(*denominators)
        self.cycle = min(cycle, _LONGEST_CYCLE)
        floats = [float(share) for share in shares]
        self.counts = apportion(floats, total=self.cycle)

    def deal(self, first: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the windows of positions first .. first + count - 1: source and number of each,
        int64 [count]. A number is that in the source's own endless sequence, without gaps.

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
        all_sources = np.arange(len(due))
        sources = np.repeat(all_sources, due)

        # The windows at the positions asked for, in the order in which they are due.
        order = self._sort(sources, numbers)
        begin = first - before.sum()
        end = begin + count
        chosen = order[begin:end]
        return sources[chosen], numbers[chosen]

    def _sort(self, sources: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """Return the order in which windows are due, int64 [n].

        The time within a cycle is computed from its beginning, so that it is the same in each.
        """
        counts = self.counts[sources]
        cycles, places = np.divmod(numbers, counts)
        middles = places + 0.5
        times = middles / counts
        return np.lexsort((sources, times, cycles))  # by the last one first

    def _due(self, time: int) -> np.ndarray:
        """Return how many windows of each source are due until `time`, in positions, int64 [S]."""
        time = max(int(time), 0)
        # Window i is due if (i + 1/2) cycle / count <= time; in whole numbers of any size.
        due = []
        for count in self.counts.tolist():
            halves = 2 * time * count + self.cycle
            windows = halves // (2 * self.cycle)
            due.append(windows)
        return np.array(due, dtype=np.int64)


def apportion(weights: Sequence[float], total: int) -> np.ndarray:
    """Return whole numbers that add up to `total`, in proportion to `weights`, int64 [S]; those
    that are rounded down most get one more.
    """
    sizes = np.asarray(weights, dtype=np.float64)
    shares = sizes / sum(weights)
    exact = shares * total
    nearly_exact = exact + 1e-9
    floors = np.floor(nearly_exact)
    counts = floors.astype(np.int64)
    missing = total - counts.sum()
    surplus = counts - exact
    rounded_most = np.argsort(surplus, kind="stable")
    one_more = rounded_most[:missing]
    counts[one_more] += 1
    return counts


def draw_windows(sources: np.ndarray, limit: int | None) -> list[np.ndarray]:
    """Return the windows of each source that a validation takes, ascending, int64: at most `limit`
    in all, of each source in proportion, chosen by the numbers alone.

    Args:
        sources: of every window, int [W].
    """
    count = sources.max(initial=0) + 1
    windows = []
    for number in range(count):
        is_of_source = sources == number
        windows.append(np.flatnonzero(is_of_source))
    if limit is None or limit >= len(sources):
        return windows

    # The sizes decide the shares, the source's number the draw.
    sizes = [len(numbers) for numbers in windows]
    counts = apportion(sizes, total=limit)
    drawn = []
    for source, numbers in enumerate(windows):
        rng = np.random.default_rng([source])
        size = counts[source]
        chosen = rng.choice(numbers, size=size, replace=False)
        drawn.append(np.sort(chosen))
    return drawn


def name_scores(scores: Sequence[str], names: Sequence[str]) -> set[str]:
    """Return the names of the scores of each of two to six sources; of more there is no chart."""
    if not 2 <= len(names) <= 6:
        return set()
    charts = set()
    for name in names:
        for score in scores:
            charts.add(f"{score}_{name}")
    return charts
