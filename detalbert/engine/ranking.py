"""Order of validations by `searcher.metric` and `searcher.smaller_is_better` of the config.

Early stopping, pruning, `metrics.json` and predict.py all ask which validation is better, and all
ask here. A metric may change when a run is resumed, so an order is computed from the validations
and never stored: that costs a few comparisons, and no count outlives the metric it was made for.
"""

import math
from collections.abc import Iterable, Mapping
from numbers import Real
from typing import Any

Searcher = Mapping[str, Any]  # `searcher:` of a config
Validation = Mapping[str, Any]  # metrics by name


def searcher_score(validation: Validation, searcher: Searcher) -> float:
    """Return the searcher's metric, negated if smaller is better; -inf if it is not finite."""
    value = validation[searcher["metric"]]
    if not isinstance(value, Real) or not math.isfinite(value):
        return -math.inf
    return -float(value) if searcher["smaller_is_better"] else float(value)


def comparable(validations: Iterable[Validation], searcher: Searcher) -> list[Validation]:
    """Return the validations that have the searcher's metric, in their order."""
    metric = searcher["metric"]
    return [validation for validation in validations if metric in validation]


def best_first(validations: Iterable[Validation], searcher: Searcher) -> list[Validation]:
    """Return the validations that have the searcher's metric, best first, equals in their order."""

    def score(validation: Validation) -> float:
        return searcher_score(validation, searcher)

    candidates = comparable(validations, searcher)
    return sorted(candidates, key=score, reverse=True)


def validations_after_best(validations: Iterable[Validation], searcher: Searcher) -> int:
    """Return how many validations came after the first of the best ones; 0 without any."""
    scores = [
        searcher_score(validation, searcher) for validation in comparable(validations, searcher)
    ]
    if not scores:
        return 0
    best = scores.index(max(scores))
    return len(scores) - 1 - best
