"""Ending of a trial that its search has dropped.

0.38.1's master marks such a trial STATE_STOPPING_COMPLETED without notifying it: on a real one 8 of
8 trials of an ASHA search ran to their end. So the trial queries its state.
"""

import logging
from collections import abc
from typing import Any, cast

from determined import pytorch

from detalbert.errors import first_line
from detalbert.settings.hparams import StepHParams
from detalbert.training import master

log = logging.getLogger(__name__)


class UntilDropped(abc.Container):
    """Steps in `reports`, and the step at which the master's state for the trial is "stopping".

    Rank 0 queries it at each report, and 1, 2, 4, 8, ... steps after each validation: immediately
    after a rung's validation the state is still STATE_RUNNING, and changes a moment later.
    """

    def __init__(
        self, reports: abc.Container, hparams: StepHParams, context: pytorch.PyTorchTrialContext
    ) -> None:
        self.reports, self.hparams, self.context = reports, hparams, context
        self._failed = False

    def __contains__(self, step: Any) -> bool:
        """Return whether to report at `step`. Collective: call at the same steps on every rank."""
        done = int(step)
        since = (done - 1) % cast(int, self.hparams.validation_period) + 1
        asks = since.bit_count() == 1 or done % self.hparams.reporting_period == 0
        if asks and self._dropped(done):
            self.context.set_stop_requested(True)
            return True
        return step in self.reports

    def _dropped(self, done: int) -> bool:
        distributed = self.context.distributed
        state = distributed.broadcast(self._state() if distributed.rank == 0 else None)
        dropped = state.startswith("STATE_STOPPING_")
        if dropped and distributed.rank == 0:
            log.info("the search ends this trial after step %d (%s)", done, state)
        return dropped

    def _state(self) -> str:
        """Return the trial's state, or "" if the request fails."""
        number = master.task().trial.trial_id
        try:
            return master.call("get", f"/api/v1/trials/{number}")["trial"]["state"]
        except Exception as error:  # training goes on, whatever the master and the network do
            if not self._failed:
                said = "search: the master does not say this trial's state (%s); asking again"
                log.warning(said, first_line(error))
            self._failed = True
            return ""
