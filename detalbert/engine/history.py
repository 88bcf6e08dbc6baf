"""Record of a run: its steps, and what its reports and validations gave.

The one count of steps and the one list of validations: progress, early stopping, the choice of
checkpoints, `metrics.json` and the page of a run read them here. Checkpoints hold it, so a restart
goes on where they stopped; the price is some hundred bytes per validation, and ten per report.
"""

from collections.abc import Mapping
from numbers import Integral
from typing import Any, NamedTuple

from determined import pytorch


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


class History(pytorch.PyTorchCallback):
    """Steps, reports and validations of a run, over all its starts, the same on every rank.

    Args:
        done: optimizer steps before this start.
    """

    def __init__(self, done: int) -> None:
        self.step = done  # optimizer steps; the trial counts each
        self.reports: list[TrainingLoss] = []
        self.validations: list[Validated] = []  # oldest first

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
