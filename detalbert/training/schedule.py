"""Work due after a step of a run; requests to stop it by signals, EC2, the master or a search.

All ranks must agree after every step, for what is due is collective itself. Whatever is a function
of the step costs nothing. A request costs one message per step, which is small and on the CPU; what
is dearer, such as the question to the master, is asked at few steps.
"""

import contextlib
import logging
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType
from typing import cast

import torch
from determined import core, pytorch

from detalbert.engine.determined_internals import core_context
from detalbert.errors import first_line
from detalbert.processes import STOP_SIGNALS, say
from detalbert.settings.hparams import StepHParams
from detalbert.training import master

log = logging.getLogger(__name__)


class LocalStops(core.DummyPreemptContext):
    """Requests in a local run, on any rank; replaces Determined's preemption signal."""

    def __init__(self, distributed: core.DistributedContext) -> None:
        super().__init__(distributed)
        # Who requested the stop, as far as this rank knows.
        self.reason: str | None = None
        # Whether this rank's signal handler has said so.
        self.announced = False
        # Exit status of the stopped run.
        self.status = 128 + signal.SIGTERM
        # Its own gloo group: the flag never waits for the device, and meets no gradient.
        self._group: torch.distributed.ProcessGroup | None = None
        if distributed.size > 1:
            self._group = torch.distributed.new_group(backend="gloo")

    def request(self, reason: str) -> None:
        """Request a checkpoint and a stop after the current step. Safe from any thread."""
        self.reason = self.reason or reason

    def should_preempt(self, auto_ack: bool = True) -> bool:
        """Return whether any rank got a request. Collective: at the same steps on every rank."""
        if self._group is None:
            return self.reason is not None
        # A scalar, 1 once any rank has a request.
        flag = torch.tensor(int(self.reason is not None))
        torch.distributed.all_reduce(flag, op=torch.distributed.ReduceOp.MAX, group=self._group)
        requested = bool(flag.item())
        if requested:
            self.request("another rank")
        return requested

    def take_signals(self) -> None:
        """Handle SIGTERM and SIGINT as requests from now on. A second SIGINT kills the process, but
        not below torchrun, which forwards signals that its ranks already have.
        """
        interrupted = False

        def handle(number: int, frame: FrameType | None) -> None:
            nonlocal interrupted
            if interrupted and number == signal.SIGINT:
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)
            interrupted |= number == signal.SIGINT and "TORCHELASTIC_RUN_ID" not in os.environ
            if self.reason is None:
                name = signal.Signals(number).name
                # First: the next signal may come within this handler.
                self.request(name)
                self.status = 128 + number
                self.announced = True
                say(f"{name}: stopping after this step or validation, with a checkpoint")

        for number in STOP_SIGNALS:
            signal.signal(number, handle)


@contextlib.contextmanager
def restored_signals() -> Iterator[None]:
    """Restore the current handlers of SIGTERM and SIGINT at the end of the block."""
    handlers = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


class MasterStops:
    """Requests on a cluster: the master's, which receives EC2's notices from here, and a search's,
    which may drop the trial if `searched`.
    """

    def __init__(self, context: pytorch.PyTorchTrialContext, searched: bool) -> None:
        self.distributed = context.distributed
        self.searched = searched
        self.should_preempt = core_context(context).preempt.should_preempt
        # Who requests a stop, as far as this machine knows.
        self.reason = "the master (a pause, a job of higher priority, a machine that is taken back)"
        self.announced = False  # no signal's handler says it
        self._failed = False

    def request(self, notice: str) -> None:
        """Make the Determined master preempt this allocation: the trial saves a checkpoint and is
        requeued, at no cost in `max_restarts`. Raises an Exception as `master.call`.
        """
        self.reason = "EC2, which takes this machine back"
        allocation = master.task().allocation_id
        path = f"/api/v1/allocations/{allocation}/signals/pending_preemption"
        master.call("post", path, json={"allocationId": allocation})

    def dropped(self, step: int) -> bool:
        """Return whether the search has dropped this trial, by its state: 0.38.1's master marks it
        STATE_STOPPING_COMPLETED without notifying it. Collective.
        """
        if not self.searched:
            return False

        # Rank 0 asks the master, and tells the others.
        state = ""
        is_chief = self.distributed.rank == 0
        if is_chief:
            state = self._state()
        state = self.distributed.broadcast(state)
        is_dropped = state.startswith("STATE_STOPPING_")
        if is_dropped and is_chief:
            log.info("the search ends this trial after step %d (%s)", step, state)
        return is_dropped

    def _state(self) -> str:
        """Return the trial's state; "" if the master does not say it."""
        try:
            return master.trial()["state"]
        except Exception as error:  # training goes on, whatever the master and the network do
            if not self._failed:
                log.warning(
                    "search: the master does not say this trial's state (%s); asking again",
                    first_line(error),
                )
            self._failed = True
            return ""


Stops = LocalStops | MasterStops


@dataclass(eq=False)
class Schedule:
    """Decides what is due after each step, identically on every rank, here and on a cluster.

    | due | after |
    | --- | --- |
    | report | multiples of `reporting_period`, and every step after which a stop is due |
    | validate | multiples of `validation_period` |
    | checkpoint | multiples of `checkpoint_period`; the report after `request_checkpoint` |
    | stop | any step, once a stop was requested or the search has dropped the trial |

    The loop itself saves a checkpoint before it stops, and validates and saves after the last step.

    Args:
        hparams: with the periods, in steps.
        distributed: Determined's distributed context.
        stopping: requests to stop, a LocalStops or MasterStops.
    """

    hparams: StepHParams
    distributed: core.DistributedContext
    stopping: Stops
    _early: bool = False  # a checkpoint is requested on this rank
    _dropped: bool = False
    _logged: bool = False  # who requested the stop

    def at(self, step: int) -> set[str]:
        """Return what is due after `step`. Collective: call after every step, on every rank."""
        validation = cast(int, self.hparams.validation_period)  # `Training.load` has set both
        checkpoint = cast(int, self.hparams.checkpoint_period)
        is_report = step % self.hparams.reporting_period == 0

        # Each machine has its own watcher. Determined's allgather is expensive: at reports only.
        early = False
        if self.hparams.spot_notice and is_report:
            requested = self._early
            self._early = False
            early = any(self.distributed.allgather(requested))

        # A search drops a trial a moment after a validation: so its state is requested 1, 2, 4, 8,
        # ... steps after each, and at each report.
        steps_since_validation = (step - 1) % validation + 1
        is_power_of_two = steps_since_validation.bit_count() == 1
        if isinstance(self.stopping, MasterStops) and (is_power_of_two or is_report):
            self._dropped = self._dropped or self.stopping.dropped(step)

        stop = self.stops(acknowledge=False)
        due = {
            "report": stop or is_report,
            "validate": step % validation == 0,
            "checkpoint": early or step % checkpoint == 0,
            "stop": stop,
        }
        return {name for name, is_due in due.items() if is_due}

    def stops(self, acknowledge: bool = True) -> bool:
        """Return whether to stop now, and log once who requested it. Collective. `acknowledge`
        tells the master that the trial will stop.
        """
        if self._dropped:
            return True
        requested = self.stopping.should_preempt(acknowledge)
        if requested and not self._logged:
            if self.distributed.rank == 0 and not self.stopping.announced:
                log.info("asked to stop by %s; a checkpoint follows", self.stopping.reason)
            self._logged = True
        return requested

    def request_checkpoint(self) -> None:
        """Request one checkpoint at the next report. Safe from any thread, on any rank."""
        self._early = True
