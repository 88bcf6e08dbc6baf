"""Early stopping: the end of a run whose validations no longer improve.

It is computed from the run's validations (history.py), so a cut run ends where an uncut one does,
and one that is resumed with another `searcher.metric` as if it had had that metric before.
"""

import logging
from typing import Any

from determined import pytorch

from detalbert.engine.history import History
from detalbert.engine.ranking import Searcher, Validation, best_first

log = logging.getLogger(__name__)


class EarlyStopping(pytorch.PyTorchCallback):
    """Ends a run after `patience` validations without a better one.

    Args:
        history: of the run.
        searcher: of the config; defines what is better.
        patience: None: the run goes to its last step.
        chief: whether this is rank 0, which alone logs.
    """

    def __init__(
        self, history: History, searcher: Searcher, patience: int | None, chief: bool
    ) -> None:
        self.history = history
        self.searcher = searcher
        self.patience = patience
        self.chief = chief

    @property
    def since(self) -> int:
        """Number of validations after the first of the best ones."""
        metric = self.searcher["metric"]
        comparable: list[Validation] = []
        for validation in self.history.validations:
            if metric in validation.metrics:
                comparable.append(validation.metrics)
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
                "stopped early: no better %s in %d validations; the run is complete",
                self.searcher["metric"],
                self.since,
            )

    def on_training_start(self) -> None:
        self.log_end()

    def state_dict(self) -> dict[str, Any]:
        return {name: self.searcher[name] for name in ("metric", "smaller_is_better")}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Log a change of the metric or its direction: a reason to resume, so it is not refused."""
        before = _describe(state_dict)
        now = _describe(self.searcher)
        if before != now and self.chief:
            log.info(
                "%-14s%s -> %s: best validation and early stopping are by it, as if it had been so",
                "searcher",
                before,
                now,
            )


def _describe(searcher: Searcher) -> str:
    """Return the keys of `searcher:` that say which of two validations is better."""
    direction = "smaller" if searcher["smaller_is_better"] else "greater"
    return f"{searcher['metric']} ({direction} is better)"
