"""Curves of a run: the training loss of every report, and the metrics of every validation.

TensorBoard and the master have them too, each for its own pages. The page of a run (run_page/)
is drawn here and in a task alike, so checkpoints have the curves: some ten bytes for a report, and
a restart draws on where the start before it stopped.
"""

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


class History(pytorch.PyTorchCallback):
    """Records the reports and validations of a run, over all its starts; `done`: steps before this
    one.
    """

    def __init__(self, done: int) -> None:
        self.step = done
        self.reports: list[TrainingLoss] = []
        self.validations: list[Validated] = []

    def on_training_workload_end(self, avg_metrics: dict[str, Any], batch_metrics: Any) -> None:
        """Record a report, given the metrics of each of its steps."""
        self.step += len(batch_metrics)
        # A checkpoint holds no number of NumPy.
        self.reports.append(TrainingLoss(step=self.step, loss=float(avg_metrics["loss"])))

    def record(self, metrics: dict[str, float]) -> None:
        """Record a validation, given all its metrics."""
        # A start that goes on from a validated step validates it again.
        if self.validations and self.validations[-1].step == self.step:
            self.validations.pop()
        self.validations.append(Validated(step=self.step, metrics=metrics))

    def state_dict(self) -> dict[str, Any]:
        return {
            "reports": [list(report) for report in self.reports],
            "validations": [list(validation) for validation in self.validations],
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.reports = [TrainingLoss(*report) for report in state_dict["reports"]]
        self.validations = [Validated(*values) for values in state_dict["validations"]]
