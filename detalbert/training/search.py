"""The end of a trial that its search has dropped.

0.38.1's master marks such a trial STATE_STOPPING_COMPLETED and tells it nothing: on a real one 8 of
8 trials of an ASHA search ran to their end. So the trial asks.
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
    """The steps of `reports`, and the one at which the master says that the trial is to end.

    The chief asks at each report, and 1, 2, 4, 8, ... steps after each validation: asked right
    after a rung's validation the trial still reads STATE_RUNNING, its state follows by a moment.
    """

    def __init__(
        self, reports: abc.Container, hparams: StepHParams, context: pytorch.PyTorchTrialContext
    ) -> None:
        self.reports, self.hparams, self.context = reports, hparams, context
        self._failed = False

    def __contains__(self, step: Any) -> bool:
        """Every rank must ask this at the same steps."""
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
        """Of the trial, as the master has it; empty where it gives no answer."""
        number = master.task().trial.trial_id
        try:
            return master.call("get", f"/api/v1/trials/{number}")["trial"]["state"]
        except Exception as error:  # training goes on, whatever the master and the network do
            if not self._failed:
                said = "search: the master does not say this trial's state (%s); asking again"
                log.warning(said, first_line(error))
            self._failed = True
            return ""
