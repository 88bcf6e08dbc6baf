"""Verdict on a run in one number and one line, and the one step to take next.

The rules are few and their limits are round: they say what a colleague would say at a look.
"""

from typing import NamedTuple

import numpy as np
import pandas as pd

from detalbert.errors import counted
from detalbert.run_page.outcomes import interval
from detalbert.run_page.run import RunSummary

WIDEST = 25  # points of an interval that allows a verdict
USEFUL = 60  # percent right; fewer are weak
GOOD = 90
READ = "Read the surest wrong answers: first of all the label may be wrong."
# Of metrics by which a run without answers is judged.
MEANINGS = {
    "bits_per_byte": "bits per byte of held-out text; fewer are better",
    "mlm_accuracy": "percent of the masked tokens of held-out text that are predicted",
}
OVERFIT = 1.1  # times the lowest held-out loss


class Verdict(NamedTuple):
    """The head of a page."""

    number: str
    meaning: str
    line: str
    is_bad: bool
    step: str  # to take next


def judge_answers(run: RunSummary, table: pd.DataFrame) -> Verdict:
    """Return the verdict on a run with answers to at least one question."""
    share, low, high = interval(table.exact)
    abstaining = 100 * (~table.answerable).mean()
    step = "Begin with a model that has learned SQuAD (configs/questions.yaml)."
    is_bad = False
    if high - low > WIDEST:
        line = f"Too few held-out questions to judge: {len(table):,}."
        step = "Hold out 100 questions or more, on many texts."
    elif abstaining and low <= abstaining:
        line = "Not clearly better than always abstaining."
        is_bad = True
    elif share <= USEFUL:
        line = "Weak: four of ten results or more are wrong."
        is_bad = True
    elif low < GOOD:
        line = "Useful, with errors."
        step = _read_curve(run) or READ
    else:
        line = "Good: nine of ten or more are right."
        step = READ if share < 100 else "Ask it about texts of your own."
    meaning = (
        f"right: {table.exact.sum():,.0f} of {counted(len(table), 'held-out question')} "
        f"(95 % interval {low:.0f} to {high:.0f} %)."
    )
    return Verdict(f"{share:.1f} %", meaning, line, is_bad, step)


def judge_metrics(run: RunSummary) -> Verdict:
    """Return the verdict on a run without answers."""
    name, meaning, baseline = main_metric(run)
    value = run.best[name]
    step = _read_curve(run) or "Put it to use: the commands are here."
    if baseline is None:
        line = "The best validation of the run."
    elif value < baseline:
        line = f"Better than the best constant guess: {baseline:.2f}."
    else:
        line = f"No better than the best constant guess: {baseline:.2f}."
        step = "Train longer, or at another rate (hyperparameters.base_learning_rate)."
    is_bad = line.startswith("No")
    return Verdict(f"{value:.2f}", meaning, line, is_bad, step)


def main_metric(run: RunSummary) -> tuple[str, str, float | None]:
    """Return the name of a run's main metric, what it is, and the value of a constant guess."""
    for name, meaning in MEANINGS.items():
        if name in run.best:
            return name, meaning, run.best.get(f"baseline_{name}")
    return run.metric, f"{run.metric} on held-out data", None


def _read_curve(run: RunSummary) -> str:
    """Return what the held-out losses advise, "" if nothing."""
    points = run.history.validations
    losses = np.array([point.metrics["loss"] for point in points])
    if len(losses) < 3:
        return ""
    lowest = int(losses.argmin())
    if losses[-1] > OVERFIT * losses[lowest]:
        return f"Gather more data: the held-out loss rises after step {points[lowest].step:,}."
    if losses[-1] < 0.95 * losses[-3:-1].min():
        return "Train longer (hyperparameters.max_steps): the held-out loss still falls."
    return ""
