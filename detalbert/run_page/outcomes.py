"""Held-out questions with what a model made of them, as a table: scores, thresholds, probabilities.

What is right is what the official scorer says, so the page agrees with the scores of a run.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from detalbert.squad.answers import Answers
from detalbert.squad.error_groups import find_group
from detalbert.squad.metrics import gold_scores
from detalbert.squad.windows import Example

Z = 1.96  # standard errors on either side that hold 95 % of a normal distribution
FEWEST = 5  # answers of a threshold or a bin that is shown


class Outcomes(NamedTuple):
    """Q held-out questions and their answers at the threshold of the run.

    `table` has a row for each: `example`, `prediction` ("": abstained), `group` of its error ("":
    none), `exact` and `f1` of the prediction, `span_exact` of the best span, `odds` (above the
    threshold the model abstains), `answerable`, `probability` of being right (NaN: uncalibrated).
    """

    table: pd.DataFrame
    threshold: float


def collect(examples: Sequence[Example], answers: Answers, threshold: float) -> Outcomes:
    """Return the outcomes of all `examples` that have an answer; `threshold`: of the answers."""
    rows = []
    for example in examples:
        if example.id not in answers.predictions:
            continue
        prediction = answers.predictions[example.id]
        labels = [text for text, _ in example.answers or ()]
        exact, f1 = gold_scores(prediction, example)
        row = {
            "example": example,
            "prediction": prediction,
            "group": find_group(labels, prediction),
            "exact": float(exact),
            "f1": float(f1),
            "span_exact": float(gold_scores(answers.spans[example.id], example)[0]),
            "odds": answers.null_odds[example.id],
            "answerable": bool(labels),
            "probability": answers.probabilities.get(example.id, np.nan),
        }
        rows.append(row)
    return Outcomes(pd.DataFrame(rows), threshold)


def interval(scores: pd.Series) -> tuple[float, float]:
    """Return Wilson's 95 % interval of the mean of scores between 0 and 1, in percent."""
    share = scores.mean()
    pull = Z**2 / len(scores)
    centre = share + pull / 2
    half = (pull * (share * (1 - share) + pull / 4)) ** 0.5
    scale = 100 / (1 + pull)
    return scale * (centre - half), scale * (centre + half)


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
