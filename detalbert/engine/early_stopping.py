"""Early stopping: the end of a run whose validations no longer improve."""

import logging
from collections.abc import Mapping
from typing import Any

from determined import pytorch

log = logging.getLogger(__name__)


class EarlyStopping(pytorch.PyTorchCallback):
    """Ends a run after `patience` validations (None: never) without a better one by `searcher:` of
    the config. Every rank counts alike, and checkpoints have the count, so a resumed run ends where
    an uninterrupted one does. `chief`: whether this is rank 0, which alone logs.
    """

    def __init__(self, searcher: Mapping[str, Any], patience: int | None, chief: bool) -> None:
        self.searcher, self.patience, self.chief = searcher, patience, chief
        self.best: float | None = None  # greatest score, of a metric to minimize the negative one
        self.since = 0  # validations after the best one

    @property
    def reached(self) -> bool:
        """Whether the run is complete, before its last step."""
        return self.patience is not None and self.since >= self.patience

    def on_validation_end(self, metrics: dict[str, Any]) -> None:
        score = float(metrics[self.searcher["metric"]])
        score = -score if self.searcher["smaller_is_better"] else score
        better = self.best is None or score > self.best
        self.best, self.since = (score, 0) if better else (self.best, self.since + 1)
        self.on_training_start()

    def on_training_start(self) -> None:
        if self.reached and self.chief:
            said = "stopped early: no better %s in %d validations; the run is complete"
            log.info(said, self.searcher["metric"], self.since)

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "since": self.since}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.best, self.since = state_dict["best"], state_dict["since"]
