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
    metric = searcher["metric"]
    value = validation[metric]
    if not isinstance(value, Real):
        return -math.inf
    score = float(value)
    if not math.isfinite(score):
        return -math.inf
    if searcher["smaller_is_better"]:
        return -score
    return score


def best_first(validations: Iterable[Validation], searcher: Searcher) -> list[Validation]:
    """Return the validations that have the searcher's metric, best first, equals in their order."""
    metric = searcher["metric"]
    comparable = []
    for validation in validations:
        if metric in validation:
            comparable.append(validation)

    def score(validation: Validation) -> float:
        return searcher_score(validation, searcher)

    return sorted(comparable, key=score, reverse=True)
