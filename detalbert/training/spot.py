"""EC2's two-minute warning before it reclaims a spot machine.

https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/rebalance-recommendations.html

An interruption notice ends this start of the run. A rebalance recommendation may come earlier, or
without a later reclaim, and stays readable on its machine: it causes one checkpoint only.
"""

import contextlib
import logging
import threading
from collections import abc
from collections.abc import Callable, Iterator
from typing import Any, cast

from determined import core

from detalbert.errors import first_line
from detalbert.settings.hparams import StepHParams
from detalbert.training import master
from detalbert.training.metadata import Metadata, TokenWanted
from detalbert.training.stopping import Every

NOTICE = "spot/instance-action"
RECOMMENDATION = "events/recommendations/rebalance"
PERIOD = 5.0  # seconds between two looks, as EC2 recommends, and between two calls to the master
TRIES = 3  # looks before a service that never answered counts as absent
SLOW_PERIOD = 30.0  # seconds between two looks then: it may be late, and a notice lasts 120 s
REMEDY = (
    "Set the machines' metadata hop limit to 2 (cluster/README.md), or network_mode: host "
    "in the master's task_container_defaults"
)
log = logging.getLogger(__name__)


class SpotWatcher(threading.Thread):
    """Thread that calls `on_notice(text)` after EC2's interruption notice, until it succeeds once.

    Calls `on_recommendation()` at most once, and keeps watching. No error ends the thread: it logs
    each kind once and retries.
    """

    def __init__(
        self, on_notice: Callable[[str], None], on_recommendation: Callable[[], None]
    ) -> None:
        super().__init__(name="spot-watcher", daemon=True)
        self.on_notice = on_notice
        self.on_recommendation = on_recommendation
        self.stopped = threading.Event()
        self._metadata = Metadata()
        self._answered = False
        self._recommended = False
        self._said: set[str] = set()

    def run(self) -> None:
        notice = self._wait_for_notice()
        if notice is not None:
            # The experiments' log policies know this line by its first two words.
            log.warning("EC2 announces: %s", notice)
            self._pass_on(notice)

    def _wait_for_notice(self) -> str | None:
        failures = 0
        while not self.stopped.is_set():
            try:
                notice = self._look()
                if notice is not None:
                    return notice
                failures = 0
            except Exception as error:
                failures += 1
                self._say_unread(error, failures)
            fast = self._answered or failures < TRIES
            self.stopped.wait(PERIOD if fast else SLOW_PERIOD)
        return None

    def _look(self) -> str | None:
        notice = self._read(NOTICE)
        if notice is None and not self._recommended:
            recommendation = self._read(RECOMMENDATION)
            if recommendation is not None:
                self.on_recommendation()
                self._recommended = True
                log.warning(
                    "EC2 recommends to leave this machine (%s): a checkpoint follows at the next "
                    "report, and the run goes on",
                    recommendation,
                )
        return notice

    def _read(self, path: str) -> str | None:
        text = self._metadata.read(path)
        self._answered = True
        self._say_once(logging.INFO, "way", f"spot notices: read {self._metadata.way}")
        return None if text is None else " ".join([path, *text.split()])  # one line, for the log

    def _pass_on(self, notice: str) -> None:
        while not self.stopped.is_set():
            try:
                self.on_notice(notice)
                return
            except Exception as error:
                text = f"spot notices: not passed on ({_reason(error)}); asking again"
                self._say_once(logging.WARNING, f"told {_kind(error)}", text)
            self.stopped.wait(PERIOD)

    def _say_unread(self, error: Exception, failures: int) -> None:
        if self._answered:
            text = f"spot notices: no answer now ({_reason(error)}); asking again"
            self._say_once(logging.WARNING, f"read {_kind(error)}", text)
        elif failures >= TRIES and isinstance(error, TokenWanted):
            text = f"spot notices: not read: {error}. {REMEDY}"
            self._say_once(logging.WARNING, "token", text)
        elif failures >= TRIES:
            text = f"no instance metadata at {self._metadata.address} ({_reason(error)})"
            text = f"spot notices: not read: {text}, so probably not on EC2. There: {REMEDY}"
            self._say_once(logging.INFO, "none", text)

    def _say_once(self, level: int, what: str, text: str) -> None:
        if what not in self._said:
            self._said.add(what)
            log.log(level, "%s", text)


def _kind(error: Exception) -> str:
    status = getattr(error, "status_code", getattr(error, "code", ""))
    return f"{type(error).__name__} {status}"


def _reason(error: Exception) -> str:
    cause = getattr(error, "reason", None)  # urllib wraps the system's error
    return first_line(cause if isinstance(cause, Exception) else error)


class EarlyCheckpoint(abc.Container):
    """Steps that end in a checkpoint: those of `checkpoint_period`, and the report after a request.

    Each machine has its own watcher, so any rank may get the request, and all must save at the same
    step. They agree at reports only, as a collective call at every step would be too expensive.
    `first` is the number of steps completed before this start.
    """

    def __init__(
        self, hparams: StepHParams, distributed: core.DistributedContext, first: int = 0
    ) -> None:
        self.hparams = hparams
        self.every = Every(cast(int, hparams.checkpoint_period), first)
        self.distributed = distributed
        self._asked = threading.Event()

    def request(self) -> None:
        """Request one checkpoint at the next report. Safe from any thread."""
        self._asked.set()

    def __contains__(self, step: Any) -> bool:
        """Return whether to save at `step`. Collective: call at the same steps on every rank."""
        early = self.hparams.spot_notice and int(step) % self.hparams.reporting_period == 0
        return (early and self._agreed()) or step in self.every

    def _agreed(self) -> bool:
        asked = self._asked.is_set()
        if asked:
            self._asked.clear()
        return any(self.distributed.allgather(asked))


@contextlib.contextmanager
def watching(
    enabled: bool, on_notice: Callable[[str], None], on_recommendation: Callable[[], None]
) -> Iterator[None]:
    """Run a SpotWatcher during the block if `enabled` (one per machine is enough)."""
    watcher = SpotWatcher(on_notice, on_recommendation)
    if enabled:
        watcher.start()
    try:
        yield
    finally:
        watcher.stopped.set()


class ThroughTheMaster:
    """Forwards EC2's interruption notice to the master as preemption; names who asked to stop."""

    def __init__(self) -> None:
        self._noticed = False  # on this machine

    def request(self, notice: str) -> None:
        """Make the Determined master preempt this allocation. Raises an Exception as `master.call`.

        The trial saves a checkpoint and is requeued, at no cost in `max_restarts`. May be called
        twice.
        """
        self._noticed = True
        allocation = master.task().allocation_id
        path = f"/api/v1/allocations/{allocation}/signals/pending_preemption"
        master.call("post", path, json={"allocationId": allocation})

    def by(self) -> str:
        """Return who requested the stop, as far as this machine knows."""
        if self._noticed:
            return "EC2, which takes this machine back"
        return "the master (a pause, a job of higher priority, a machine that is taken back)"
