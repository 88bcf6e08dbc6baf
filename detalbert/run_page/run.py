"""Describe a run for its page: what was trained, on what, and the answers of a validation."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from detalbert.engine.history import History
from detalbert.engine.trial import StepTrial
from detalbert.run_page.outcomes import Outcomes

REPORT = "report.html"


class RunSummary(NamedTuple):
    """A run, as far as its page shows it."""

    name: str  # of the experiment and its output directory
    model: str
    data: Mapping[str, str]  # lines of the start, by split
    metric: str  # the searcher's
    best: Mapping[str, float]  # metrics of the validation that the page is of, with `steps`
    history: History
    outcomes: Outcomes | None  # None: the workload has no answers, or they are lost
    shared: int  # held-out questions that were trained on, too
    commands: Mapping[str, str]  # that a user may run next, by their purpose


def describe_run(
    trial: StepTrial,
    model: str,
    best: Mapping[str, float],
    outcomes: Outcomes | None,
    commands: Mapping[str, str],
    folder: str = "",
) -> RunSummary:
    """Describe a run.

    Args:
        trial: that ran.
        model: its name and size.
        best: metrics of the validation that the page is of, with `steps`.
        outcomes: of that validation; None: there are none, or its answers are lost.
        commands: that a user may run next, by their purpose.
        folder: name of the output directory of a local run.
    """
    config = trial.context.get_experiment_config()
    shared = 0
    if outcomes is not None:
        data: Any = trial.data
        shared = np.isin(data.validation.question_hashes, data.train.question_hashes).sum()
    return RunSummary(
        name=", ".join(filter(None, [config["name"], folder])),
        model=model,
        data=trial.data.summary().lines,
        metric=config["searcher"]["metric"],
        best=best,
        history=trial.history,
        outcomes=outcomes,
        shared=shared,
        commands=commands,
    )
