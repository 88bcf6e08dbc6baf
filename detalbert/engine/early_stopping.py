"""Early stopping: the end of a run whose validations no longer improve."""

import logging
from collections.abc import Mapping
from typing import Any

from determined import pytorch

log = logging.getLogger(__name__)


class EarlyStopping(pytorch.PyTorchCallback):
    """Counts validations since the best one, identically on every rank; its state is part of each
    checkpoint, so a resumed run stops where an uninterrupted one does.

    Args:
        searcher: `searcher:` of the config, which defines the best validation, the first of equals.
        patience: validations without a better one after which the run ends; None: never.
        chief: whether this is rank 0, which alone logs.
    """

    def __init__(self, searcher: Mapping[str, Any], patience: int | None, chief: bool) -> None:
        self.metric, self.patience, self.chief = searcher["metric"], patience, chief
        self.sign = -1 if searcher["smaller_is_better"] else 1
        self.best: float | None = None
        self.since = 0  # validations after the best one

    @property
    def reached(self) -> bool:
        """Whether the run is complete, before its last step."""
        return self.patience is not None and self.since >= self.patience

    def on_training_start(self) -> None:
        self._log_end()

    def on_validation_end(self, metrics: dict[str, Any]) -> None:
        score = float(metrics[self.metric])
        if self.best is None or self.sign * score > self.sign * self.best:
            self.best, self.since = score, 0
        else:
            self.since += 1
            self._log_end()

    def _log_end(self) -> None:
        if self.reached and self.chief:
            said = "stopped early: no better %s in %d validations; the run is complete"
            log.info(said, self.metric, self.since)

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "since": self.since}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.best, self.since = state_dict["best"], state_dict["since"]
