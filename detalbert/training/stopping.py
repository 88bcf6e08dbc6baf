"""Stopping of a run: signals, agreed on by all ranks, handled after the current step."""

import contextlib
import logging
import os
import signal
from collections import abc
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch
from determined import core

from detalbert.processes import STOP_SIGNALS

log = logging.getLogger(__name__)
SHORTEST = 5  # steps of a report after a start; fewer say more of the start than of the training


class StopRequest(core.DummyPreemptContext):
    """Replacement for Determined's preemption signal in a local run.

    Any rank may get a request (a signal, an interruption notice); `should_preempt` is collective,
    so that all ranks stop at the same step.
    """

    def __init__(self, distributed: core.DistributedContext) -> None:
        super().__init__(distributed)
        self.reason: str | None = None  # why this rank was asked, or that another one was
        # Its own gloo group: the flag never waits for the device, and meets no gradient.
        self._group = torch.distributed.new_group(backend="gloo") if distributed.size > 1 else None

    def request(self, reason: str) -> None:
        """Request a checkpoint and a stop after the current step. Safe from any thread."""
        self.reason = self.reason or reason

    def should_preempt(self, auto_ack: bool = True) -> bool:
        """Return whether any rank got a request. Collective: at the same steps on every rank."""
        if self._group is None:
            return self.reason is not None
        flag = torch.tensor(int(self.reason is not None))
        torch.distributed.all_reduce(flag, torch.distributed.ReduceOp.MAX, group=self._group)
        if flag.item():
            self.request("another rank")
        return bool(flag.item())

    def take_signals(self) -> None:
        """Handle SIGTERM and SIGINT as requests from now on (see `restored_signals`).

        A second SIGINT kills the process, but not below torchrun, which forwards to its ranks
        signals that a terminal or scheduler has already sent them.
        """
        interrupted = False

        def handle(number: int, frame: FrameType | None) -> None:
            nonlocal interrupted
            if interrupted and number == signal.SIGINT:
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)
            interrupted |= number == signal.SIGINT and "TORCHELASTIC_RUN_ID" not in os.environ
            self.request(signal.Signals(number).name)

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


class Told:
    """Wrapper that replaces `preempt.should_preempt` and logs once who requested the stop.

    Only rank 0 logs. A wrapper, because Determined's loop calls the method, too.
    """

    def __init__(
        self, preempt: core.PreemptContext, by: Callable[[], str | None], chief: bool
    ) -> None:
        self.should_preempt, self.by = preempt.should_preempt, by
        self.silent = not chief
        preempt.should_preempt = self  # type: ignore[method-assign]  # in its place

    def __call__(self, auto_ack: bool = True) -> bool:
        asked = self.should_preempt(auto_ack)
        if asked and not self.silent:
            log.info("asked to stop by %s; a checkpoint follows", self.by())
            self.silent = True
        return asked


class Every(abc.Container):
    """Multiples of `period`, except those fewer than `min(SHORTEST, period)` steps after a resume.

    A run resumed at step 88 has its first report at 100, not at 90: over two steps the throughput
    is a spike in the chart, and a checkpoint saves hardly more than the one before. `first` is the
    number of steps completed before this start.
    """

    def __init__(self, period: int, first: int = 0) -> None:
        self.period = period
        self.after = first + min(SHORTEST, period) if first else 0

    def __contains__(self, step: Any) -> bool:
        return int(step) % self.period == 0 and int(step) >= self.after


class EveryOrStop(abc.Container):
    """Steps at which Determined's loop reports: those in `every`, and any after a stop request.

    Determined checks for preemption at reports only, so with a period of 10 steps alone a stop
    could take 10 steps.
    """

    def __init__(self, every: Every, should_stop: Callable[[], bool]) -> None:
        self.every, self.should_stop = every, should_stop

    def __contains__(self, step: object) -> bool:
        return self.should_stop() or step in self.every
