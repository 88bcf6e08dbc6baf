"""Shares of several sources: of training by weights, of a capped validation by sizes."""

from collections.abc import Sequence

import numpy as np

_CYCLE = 10_000  # positions after which the pattern of sources repeats


class Mixture:
    """The source of every position of a training, as a function of the position.

    Weights 0.5, 0.3 and 0.2 give ten positions the sources 0 1 0 2 0 1 0 2 1 0, again and again. So
    each stretch of n positions has n times a source's weight of its windows, give or take two. A
    source goes on where it stopped, and begins again when it has run out.

    Args:
        weights: of each source, in any unit.
    """

    def __init__(self, weights: Sequence[float]) -> None:
        self.counts = apportion(weights, _CYCLE)  # int64 [S]: positions of a cycle
        times = [(np.arange(count) + 0.5) / count for count in self.counts]
        sources = np.repeat(np.arange(len(times)), self.counts)  # [_CYCLE]
        ranks = np.concatenate([np.arange(count) for count in self.counts])
        order = np.argsort(np.concatenate(times), kind="stable")
        self.sources, self.ranks = sources[order], ranks[order]

    def deal(self, first: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the sources of positions first .. first + count - 1, and which window in its own
        endless sequence each is, int64 [count] both. Those of one source have no gaps.
        """
        cycles, at = np.divmod(np.arange(first, first + count), _CYCLE)
        sources = self.sources[at]
        return sources, cycles * self.counts[sources] + self.ranks[at]


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
