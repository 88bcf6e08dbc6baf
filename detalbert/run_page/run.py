"""Describe a run for its page: what was trained, on what, and the answers of a validation."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from detalbert.engine.history import History
from detalbert.engine.trial import StepTrial
from detalbert.errors import UserError
from detalbert.run_page.outcomes import Outcomes
from detalbert.settings.metric import Metric

REPORT = "report.html"
MARK = '<meta name="generator" content="detalbert report">'


class RunSummary(NamedTuple):
    """A run, as far as its page shows it."""

    name: str  # of the experiment, its data and its output directory
    model: str
    data: Sequence[str]  # lines of the start
    metrics: Sequence[Metric]  # of the workload
    metric: str  # the searcher's
    best: Mapping[str, float]  # metrics of the validation that the page is of, with `steps`
    history: History
    outcomes: Outcomes | None  # None: the workload has no answers, or they are lost
    shared: int  # held-out questions that were trained on, too
    is_generated: bool  # whether the held-out questions are of the generated world
    commands: Mapping[str, str]  # that a user may run next, by their purpose


def check_report(folder: Path) -> None:
    """Raise UserError if a folder has a report.html that no run wrote."""
    path = folder / REPORT
    if path.exists() and MARK.encode() not in path.read_bytes()[:1000]:
        raise UserError("a run would replace it", key=str(path), cure="move it away")


def describe_model(trial: StepTrial) -> str:
    """Return a model's name, whether it starts from random weights, and its size."""
    hparams = trial.hparams
    name = hparams.model or getattr(hparams, "size", None)
    if name is None:
        name = f"{trial.model.config.model_type} of hyperparameters.model_config"
    if trial.starts_from_scratch():
        name += " from random weights"
    return f"{name}, {count_parameters(trial):,} parameters"


def count_parameters(trial: StepTrial) -> int:
    return sum(parameter.numel() for parameter in trial.model.parameters())


def describe_run(
    trial: StepTrial,
    metrics: Sequence[Metric],
    best: Mapping[str, float],
    outcomes: Outcomes | None,
    commands: Mapping[str, str] = MappingProxyType({}),
    folder: str = "",
) -> RunSummary:
    """Describe a run.

    Args:
        trial: that ran.
        metrics: of its workload.
        best: metrics of the validation that the page is of, with `steps`.
        outcomes: of that validation; None: there are none, or its answers are lost.
        commands: that a user may run next, by their purpose.
        folder: name of the output directory of a local run.
    """
    config = trial.context.get_experiment_config()
    lines = trial.data.summary().lines
    shared = 0
    if outcomes is not None:
        data: Any = trial.data
        shared = np.isin(data.validation.question_hashes, data.train.question_hashes).sum()
    # Runs of one config differ in these; a line without a colon names no source.
    source, colon, _ = lines.get("train", "").partition(": ")
    names = [config["name"], Path(source).name if colon else "", folder]
    return RunSummary(
        name=", ".join(name for name in names if name),
        model=describe_model(trial),
        data=[f"{name}: {line}" for name, line in lines.items()],
        metrics=metrics,
        metric=config["searcher"]["metric"],
        best=best,
        history=trial.history,
        outcomes=outcomes,
        shared=int(shared),
        is_generated=lines.get("validation", "").startswith("generated:"),
        commands=commands,
    )
