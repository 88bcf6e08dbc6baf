"""Held-out questions with what a model made of them, as a table: scores, thresholds, probabilities.

What is right is what the scorer of `data.language` says, so the page agrees with the scores of a
run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from detalbert.run_page.excerpt import cut_sentence
from detalbert.settings.languages import ENGLISH
from detalbert.squad.answers import Answers
from detalbert.squad.error_groups import find_group
from detalbert.squad.example import Example
from detalbert.squad.metrics import gold_scores

if TYPE_CHECKING:
    import pandas as pd

Z = 1.96  # standard errors on either side that hold 95 % of a normal distribution
FEWEST = 5  # answers of a threshold or a bin that is shown


class Outcomes(NamedTuple):
    """Q held-out questions and their answers at the threshold of the run.

    `table` has a row for each: `example`, the sentences `expected` and `given`, the `group` of its
    error ("": none), `exact` and `f1` of the prediction, `span_exact` of the best span, `odds`
    (above the threshold the model abstains), `answerable`, `probability` (NaN: uncalibrated).
    """

    table: pd.DataFrame
    threshold: float
    language: str  # `data.language`


def collect(
    examples: Sequence[Example], answers: Answers, threshold: float, language: str = ENGLISH
) -> Outcomes:
    """Return the outcomes of all `examples`; `threshold`: of the answers; `language`: theirs."""
    import pandas as pd  # takes half a second, at each start

    rows = []
    for example in examples:
        prediction = answers.predictions[example.id]
        span = answers.spans[example.id]
        labels = [text for text, _ in example.answers or ()]
        label, start = (example.answers or [("", 0)])[0]
        exact, f1 = gold_scores(prediction, example, language)
        span_exact, _ = gold_scores(span, example, language)
        row = {
            "example": example,
            "expected": cut_sentence(example.context, label, start),
            "given": cut_sentence(
                example.context,
                prediction,
                start=example.context.find(prediction),
            ),
            "group": find_group(labels, prediction, language),
            "exact": exact,
            "f1": f1,
            "span_exact": span_exact,
            "odds": answers.null_odds[example.id],
            "answerable": bool(labels),
            "probability": answers.probabilities.get(example.id, np.nan),
        }
        rows.append(row)
    return Outcomes(pd.DataFrame(rows), threshold, language)


class Interval(NamedTuple):
    """A mean and its 95 % interval, in percent."""

    mean: float
    low: float
    high: float


def interval(scores: pd.Series) -> Interval:
    """Return the mean of scores between 0 and 1, with Wilson's interval."""
    share = scores.mean()
    pull = Z**2 / len(scores)
    centre = share + pull / 2
    half = (pull * (share * (1 - share) + pull / 4)) ** 0.5
    scale = 100 / (1 + pull)
    return Interval(100 * share, low=scale * (centre - half), high=scale * (centre + half))


def sweep_thresholds(table: pd.DataFrame) -> pd.DataFrame:
    """Return the `answered` and the `right` of them, in percent, at every threshold that gives
    enough answers.
    """
    ordered = table.sort_values("odds")
    given = np.arange(1, len(table) + 1)
    ordered["answered"] = 100 * given / len(table)
    ordered["right"] = 100 * ordered.span_exact.cumsum() / given
    # Answers of the same odds are given together.
    return ordered[FEWEST - 1 :].drop_duplicates("odds", keep="last")


def reliability(table: pd.DataFrame) -> pd.DataFrame:
    """Return mean `probability`, share `right` and `count` in each tenth of the probabilities."""
    groups = table.groupby((10 * table.probability).clip(upper=9) // 1)
    bins = groups.agg(
        probability=("probability", "mean"),
        right=("exact", "mean"),
        count=("exact", "size"),
    )
    return bins[bins["count"] >= FEWEST]
