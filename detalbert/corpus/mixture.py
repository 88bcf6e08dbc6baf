"""Shares of several sources: of training by weights, of a capped validation by sizes."""

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
        exact = [Fraction(str(weight)) for weight in weights]
        shares = [weight / sum(exact) for weight in exact]
        cycle = math.lcm(*(share.denominator for share in shares))
        if cycle <= _LONGEST_CYCLE:
            counts = [int(share * cycle) for share in shares]
        else:
            cycle = _LONGEST_CYCLE
            counts = apportion([float(share) for share in shares], cycle).tolist()
        self.cycle = cycle  # positions after which the pattern of sources repeats
        self.counts: list[int] = counts  # of each source in a cycle

    def deal(self, first: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the sources of positions first .. first + count - 1, and which window in its own
        endless sequence each is, int64 [count] both. Those of one source have no gaps.

        Time and memory are those of `count` positions, wherever these are: up to time t about t
        windows are due, so only those near this stretch of time are put in order.
        """
        # At most half a window per source is due too early or too late; one more may be due at the
        # same time as the stretch begins or ends.
        margin = 2 * len(self.counts)
        before = self._due(max(first - margin, 0))
        after = self._due(first + count + margin)

        parts = zip(self.counts, before, after, strict=True)
        numbers = [np.arange(begin, end) for _, begin, end in parts]
        cycles, times = [], []
        for size, windows in zip(self.counts, numbers, strict=True):
            cycle, place = np.divmod(windows, max(size, 1))
            cycles.append(cycle)
            times.append((place + 0.5) / max(size, 1))  # in cycles, from the beginning of its own
        sources = np.repeat(np.arange(len(numbers)), [len(windows) for windows in numbers])

        # The last key sorts first.
        order = np.lexsort((sources, np.concatenate(times), np.concatenate(cycles)))
        begin = first - sum(before)
        order = order[begin : begin + count]
        return sources[order], np.concatenate(numbers)[order]

    def _due(self, time: int) -> list[int]:
        """Return how many windows of each source are due until `time`, in positions."""
        # (i + 1/2) / w <= time, in whole numbers: 2 i + 1 <= 2 time count / cycle
        return [(2 * time * count + self.cycle) // (2 * self.cycle) for count in self.counts]


def apportion(weights: Sequence[float], total: int) -> np.ndarray:
    """Return whole numbers that add up to `total`, in proportion to `weights`, int64 [S]; those
    that are rounded down most get one more.
    """
    exact = np.asarray(weights, np.float64) / sum(weights) * total
    counts = np.floor(exact + 1e-9).astype(np.int64)
    most = np.argsort(counts - exact, kind="stable")
    counts[most[: total - counts.sum()]] += 1
    return counts


def draw_windows(sources: np.ndarray, limit: int | None) -> list[np.ndarray]:
    """Return the windows of each source that a validation takes, ascending, int64: at most `limit`
    in all, of each source in proportion, chosen by the numbers alone.

    Args:
        sources: of every window, int [W].
    """
    windows = [np.flatnonzero(sources == source) for source in range(sources.max(initial=0) + 1)]
    if limit is None or limit >= len(sources):
        return windows
    takes = zip(windows, apportion([len(some) for some in windows], limit), strict=True)
    return [
        np.sort(np.random.default_rng([number]).choice(some, count, replace=False))
        for number, (some, count) in enumerate(takes)
    ]


def name_scores(scores: Sequence[str], names: Sequence[str]) -> set[str]:
    """Return the names of the scores of each of two to six sources; of more there is no chart."""
    return {f"{score}_{name}" for score in scores for name in names if 1 < len(names) <= 6}
