"""The steps after which a run reports, validates, saves a checkpoint and stops."""

import dataclasses
import logging
import threading
from typing import Any

from determined import core

from detalbert.settings.hparams import StepHParams

log = logging.getLogger(__name__)
SHORTEST = 5  # steps of a report after a start; fewer say more of the start than of the training


@dataclasses.dataclass(frozen=True)
class Due:
    """Work that is due after a step."""

    report: bool
    validate: bool
    checkpoint: bool
    stop: bool


class Schedule:
    """Decides what is due after each step, identically on every rank, here and on a cluster.

    | due | after |
    | --- | --- |
    | report | multiples of `reporting_period` (*), and every step after which a stop is due |
    | validate | multiples of `validation_period` |
    | checkpoint | multiples of `checkpoint_period` (*), and the report after `request_checkpoint` |
    | stop | any step, once a stop was requested or the search has dropped the trial |

    (*) but not fewer than min(SHORTEST, period) steps after a resume: a run resumed at step 88 has
    its first report at 100, not at 90, for over two steps the throughput is a spike in the chart.
    The loop itself saves a checkpoint before it stops, and validates and saves after the last step.
    `done` are the steps before this start; `stops` is a LocalStops or MasterStops (stopping.py).
    """

    def __init__(
        self, hparams: StepHParams, distributed: core.DistributedContext, done: int, stops: Any
    ) -> None:
        self.hparams, self.distributed, self.done, self.stopping = hparams, distributed, done, stops
        self._early = threading.Event()  # a checkpoint is requested on this rank
        self._dropped = False
        self._logged = distributed.rank != 0  # who requested the stop

    def at(self, step: int) -> Due:
        """Return what is due after `step`. Collective: call after every step, on every rank."""
        keys: Any = self.hparams
        early = keys.spot_notice and step % keys.reporting_period == 0 and self._take_request()
        # A search drops a trial a moment after a validation: so its state is requested 1, 2, 4, 8,
        # ... steps after each, and at each report.
        since = (step - 1) % keys.validation_period + 1
        if since.bit_count() == 1 or step % keys.reporting_period == 0:
            self._dropped = self._dropped or self.stopping.dropped(step)
        stop = self.stops(acknowledge=False)
        return Due(
            report=stop or self._regular(step, keys.reporting_period),
            validate=step % keys.validation_period == 0,
            checkpoint=early or self._regular(step, keys.checkpoint_period),
            stop=stop,
        )

    def stops(self, acknowledge: bool = True) -> bool:
        """Return whether to stop now, and log once who requested it. Collective. `acknowledge`
        tells the master that the trial will stop.
        """
        if self._dropped:
            return True
        requested = self.stopping.should_preempt(acknowledge)
        if requested and not self._logged:
            log.info("asked to stop by %s; a checkpoint follows", self.stopping.by())
            self._logged = True
        return requested

    def request_checkpoint(self) -> None:
        """Request one checkpoint at the next report. Safe from any thread, on any rank."""
        self._early.set()

    def _take_request(self) -> bool:
        """Return whether any rank got a request since the last report. Collective, so expensive."""
        requested = self._early.is_set()
        if requested:
            self._early.clear()
        return any(self.distributed.allgather(requested))

    def _regular(self, step: int, period: int) -> bool:
        soon = self.done and step < self.done + min(SHORTEST, period)
        return step % period == 0 and not soon
