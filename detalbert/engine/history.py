"""Record of a run: its steps, what its reports and validations gave, and which was best; its early
end, and a warning that it learns nothing.

The one count of steps and the one list of validations: progress, early stopping, the choice of
checkpoints, `metrics.json` and the page of a run read them here. Checkpoints hold it, so a restart
goes on where they stopped; the price is some hundred bytes per validation, and ten per report. Its
early end is computed from them: a cut run ends where an uncut one does, and one that is resumed
with another `searcher.metric` as if it had had that metric before.

The warning: nearly always the learning rate is wrong for the model; one for a small model from
random weights is too high for a pretrained one. A person would see it in the curve after an hour;
the line says it after a hundred steps. A fall of the loss alone shows little: a model that is lost
still learns which answers are frequent, so the loss is compared with that of guessing by their
frequency. A model that begins with a low loss, as one that goes on, is let alone.
"""

import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, NamedTuple

from determined import pytorch

from detalbert.errors import counted

log = logging.getLogger(__name__)
STEPS = 100  # of a run, and its warm-up, before it is judged
FALL = 0.9  # of the loss of guessing, or of the first report's, that a run is to reach
GUESS = 0.5  # of the loss of guessing; below, something was learned
Searcher = Mapping[str, Any]  # `searcher:` of a config
Validation = Mapping[str, Any]  # metrics by name


class TrainingLoss(NamedTuple):
    """A report of training."""

    step: int
    loss: float  # mean over the windows since the report before


class Validated(NamedTuple):
    """A validation."""

    step: int
    metrics: dict[str, float]

    def flat(self) -> dict[str, float]:
        """Return the metrics with `steps`, as `metrics.json` and manifests have a validation."""
        return {"steps": self.step, **self.metrics}


@dataclass(eq=False)
class History(pytorch.PyTorchCallback):
    """Steps, reports and validations of a run, over all its starts, the same on every rank."""

    step: int  # optimizer steps, of which the trial counts each; at first those before this start
    reports: list[TrainingLoss] = field(default_factory=list)
    validations: list[Validated] = field(default_factory=list)  # oldest first

    @property
    def is_validated(self) -> bool:
        """Whether the last validation is of the last step."""
        return bool(self.validations) and self.validations[-1].step == self.step

    def on_training_workload_end(
        self, avg_metrics: Mapping[str, Any], batch_metrics: object
    ) -> None:
        """Record a report."""
        # A checkpoint holds no number of NumPy.
        self.reports.append(TrainingLoss(step=self.step, loss=float(avg_metrics["loss"])))

    def record(self, metrics: Mapping[str, Any]) -> None:
        """Record a validation of the last step, given all its metrics, which are numbers."""
        numbers = {}
        for name, value in metrics.items():
            numbers[name] = int(value) if isinstance(value, Integral) else float(value)
        if self.is_validated:  # a start that resumes at a validated step validates it again
            self.validations.pop()
        self.validations.append(Validated(step=self.step, metrics=numbers))

    def state_dict(self) -> dict[str, Any]:
        return {
            "reports": [list(report) for report in self.reports],
            "validations": [list(validation) for validation in self.validations],
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.reports = [TrainingLoss(*report) for report in state_dict["reports"]]
        self.validations = [Validated(*values) for values in state_dict["validations"]]


def best_first(validations: Iterable[Validation], searcher: Searcher) -> list[Validation]:
    """Return the validations that have the searcher's metric, best first, equals in their order;
    numbers that are not finite are the worst.
    """
    metric = searcher["metric"]
    sign = -1 if searcher["smaller_is_better"] else 1

    def score(validation: Validation) -> float:
        value = sign * validation[metric]
        return value if math.isfinite(value) else -math.inf

    comparable = [validation for validation in validations if metric in validation]
    return sorted(comparable, key=score, reverse=True)


@dataclass(eq=False)
class EarlyStopping(pytorch.PyTorchCallback):
    """Ends a run after `patience` validations without a better one.

    Args:
        history: of the run.
        searcher: of the config; defines what is better.
        patience: None: the run goes to its last step.
        chief: whether this is rank 0, which alone logs.
    """

    history: History
    searcher: Searcher
    patience: int | None
    chief: bool

    @property
    def since(self) -> int:
        """Number of validations after the first of the best ones."""
        metric = self.searcher["metric"]
        comparable: list[Validation] = [
            result.metrics for result in self.history.validations if metric in result.metrics
        ]
        if not comparable:
            return 0
        best = best_first(comparable, self.searcher)[0]
        return len(comparable) - 1 - comparable.index(best)

    @property
    def reached(self) -> bool:
        """Whether the run is complete, before its last step."""
        return self.patience is not None and self.since >= self.patience

    def log_end(self) -> None:
        """Log if the run is complete; call after each validation."""
        if self.reached and self.chief:
            log.info(
                "stopped early: no better %s in %s; the run is complete",
                self.searcher["metric"],
                counted(self.since, "validation"),
            )

    on_training_start = log_end  # a start of a complete run says so again


class LossWatch(pytorch.PyTorchCallback):
    """Logs a warning if the loss is that of guessing after the first steps.

    Args:
        history: of the run, which is judged in its first start alone.
        warmup: steps of the run in which the rate rises.
        guess: loss of a model that knows only how frequent the answers are.
        rate: `hyperparameters.base_learning_rate`.
        chief: whether this is rank 0, which alone logs.
    """

    def __init__(
        self, history: History, warmup: int, guess: float, rate: float, chief: bool
    ) -> None:
        self.history = history
        self.judged = history.step > 0 or not chief
        self.due = max(STEPS, warmup)
        self.guess = guess
        self.rate = rate
        self.first: float | None = None  # loss of the first report

    def on_training_workload_end(self, avg_metrics: dict[str, Any], batch_metrics: object) -> None:
        """Judge the loss once, at the first report after the steps that are due."""
        step = self.history.step
        loss = float(avg_metrics["loss"])
        if self.first is None:
            self.first = loss
        if self.judged or step < self.due:
            return
        self.judged = True
        if loss > FALL * min(self.first, self.guess) and loss > GUESS * self.guess:
            log.warning(
                "after %d steps the loss is %.2f, and that of guessing %.2f; if it stays so, the "
                "learning rate does not suit this model: try hyperparameters.base_learning_rate "
                "%g, or %g",
                step,
                loss,
                self.guess,
                self.rate / 10,
                self.rate * 3,
            )
