"""How exactly a share of right results is known: intervals at 95 % confidence.

Questions on one text are right and wrong together, and so tell less than as many on different
texts: errors are those of sums per text (cluster-robust), if these are the larger ones. Questions
on one text alone count as independent ones: nothing shows how alike they are.
"""

from typing import NamedTuple

import numpy as np

Z = 1.96  # standard errors on either side that hold 95 % of a normal distribution


class RightShare(NamedTuple):
    """A share, and the interval in which it may be on other questions like these."""

    matches: int
    total: int
    low: float  # percent
    high: float  # percent

    @property
    def percent(self) -> str:
        return f"{100 * self.matches / max(self.total, 1):.3g} %"

    @property
    def interval(self) -> str:
        """The interval in whole percent."""
        return f"{self.low:.0f} to {self.high:.0f} %"


def measure_share(right: np.ndarray, texts: np.ndarray) -> RightShare:
    """Return the share of questions that are right with its Wilson interval.

    Args:
        right: of n questions, bool [n].
        texts: number of each question's text, int64 [n].
    """
    count = len(right)
    matches = int(right.sum())
    if not count:
        return RightShare(matches=0, total=0, low=0.0, high=100.0)

    # Questions that share texts count as the number of independent ones that tell as much; if all
    # are right or wrong they do not show how much that is, and texts are sure to be independent.
    independent, largest = _variances(right - right.mean(), texts)
    texts_count = len(np.unique(texts))
    worth = float(count)
    if largest:
        worth *= independent / largest
    elif texts_count > 1:
        worth = texts_count

    # Wilson's interval: its centre lies nearer to a half than the share does.
    share = matches / count
    pull = Z**2 / worth
    centre = (share + pull / 2) / (1 + pull)
    variance = share * (1 - share) / worth + pull / worth / 4
    half = Z * variance**0.5 / (1 + pull)
    return RightShare(
        matches=matches,
        total=count,
        low=100 * (centre - half),
        high=100 * (centre + half),
    )


def margin_of_error(scores: np.ndarray, texts: np.ndarray) -> float:
    """Return half the width of the 95 % interval of the mean of scores, in percent.

    Args:
        scores: of the questions, or their differences between two models, float64 [Q], at most 1.
        texts: number of each question's text, int64 [Q].
    """
    if len(scores) < 2:
        return 100.0
    _, largest = _variances(scores - scores.mean(), texts)
    return 100 * Z * largest**0.5 / len(scores)


def _variances(distances: np.ndarray, texts: np.ndarray) -> tuple[float, float]:
    """Return the variance of the sum of `distances` [n] from their mean, if they are independent,
    and the larger one of that and of sums per text.
    """
    sums = np.bincount(texts, weights=distances)  # 0 for a text of other questions
    texts_count = len(np.unique(texts))
    independent = _variance(distances, len(distances))
    by_text = _variance(sums, texts_count)
    return independent, max(independent, by_text)


def _variance(distances: np.ndarray, count: int) -> float:
    """Return the variance of the sum of `count` independent distances from their mean."""
    if count < 2:
        return 0.0
    squares = float((distances**2).sum())
    return squares * count / (count - 1)
