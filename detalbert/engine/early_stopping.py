"""Early stopping: the end of a run whose validations no longer improve.

A checkpoint has the metrics of every validation instead of one count: some hundred bytes each, and
a run that is resumed with another `searcher.metric` counts as if it had had that metric before.
"""

import logging
from typing import Any

from determined import pytorch

from detalbert.engine.ranking import Searcher, validations_after_best

log = logging.getLogger(__name__)


class EarlyStopping(pytorch.PyTorchCallback):
    """Ends a run after `patience` validations (None: never) without a better one by `searcher:` of
    the config. Every rank counts alike, and checkpoints have the validations, so a resumed run ends
    where an uninterrupted one does. `chief`: whether this is rank 0, which alone logs.
    """

    def __init__(self, searcher: Searcher, patience: int | None, chief: bool) -> None:
        self.searcher = searcher
        self.patience = patience
        self.chief = chief
        self.validations: list[dict[str, float]] = []  # metrics of each, oldest first

    @property
    def since(self) -> int:
        """Number of validations after the best one."""
        return validations_after_best(self.validations, self.searcher)

    @property
    def reached(self) -> bool:
        """Whether the run is complete, before its last step."""
        if self.patience is None:
            return False
        return self.since >= self.patience

    def record(self, metrics: dict[str, float]) -> None:
        """Count a validation, given all its metrics; log if it is the last one."""
        self.validations.append(metrics)
        self.on_training_start()

    def on_training_start(self) -> None:
        if self.reached and self.chief:
            log.info(
                "stopped early: no better %s in %d validations; the run is complete",
                self.searcher["metric"],
                self.since,
            )

    def state_dict(self) -> dict[str, Any]:
        return {
            "metric": self.searcher["metric"],
            "smaller_is_better": self.searcher["smaller_is_better"],
            "validations": self.validations,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the validations; log a change of the metric or its direction."""
        self.validations = list(state_dict["validations"])
        before = _describe(state_dict)
        now = _describe(self.searcher)
        # Not refused: to choose another metric is a reason to resume.
        if before != now and self.chief:
            log.info(
                "%-14s%s -> %s: best validation and early stopping are by it, as if it had been so",
                "searcher",
                before,
                now,
            )


def _describe(searcher: Searcher) -> str:
    """Return the keys of `searcher:` that say which of two validations is better."""
    metric = searcher["metric"]
    direction = "smaller" if searcher["smaller_is_better"] else "greater"
    return f"{metric} ({direction} is better)"
