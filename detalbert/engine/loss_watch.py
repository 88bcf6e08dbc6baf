"""A line for a run that learns nothing: its loss stays that of guessing.

Nearly always the learning rate is wrong for the model: one for a small model from random weights is
too high for a pretrained one. A person would see it in the curve after an hour; the line says it
after a hundred steps. A fall of the loss alone shows little: a model that is lost still learns
which answers are frequent, so the loss is compared with that of guessing by their frequency. A
model that begins with a low loss, as one that goes on, is let alone.
"""

import logging
from typing import Any

from determined import pytorch

from detalbert.engine.history import History

log = logging.getLogger(__name__)
STEPS = 100  # of a run, and its warm-up, before it is judged
FALL = 0.9  # of the loss of guessing, or of the first report's, that a run is to reach
GUESS = 0.5  # of the loss of guessing; below, something was learned


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
