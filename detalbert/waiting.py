"""Work that may take over five seconds: a line before and after it, and progress in between.

Progress is a bar on a terminal, elsewhere a line after each 30 s without one. Rank 0 prints, and
also another rank while it holds a lock for which rank 0 may be waiting (`speaking`): without that,
a rank that works would be silent, and so would all that wait for it.
"""

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from tqdm import tqdm

from detalbert.escapes import escape_controls
from detalbert.log import silence

T = TypeVar("T")
# Seconds without a line before one says how far the work is.
PERIOD = 30.0
# Seconds of work whose end is not logged.
SHORT = 5.0
# The bar of what is counted, tqdm's way: its own, without steps per second, has no room for more.
COUNTED = "{desc}: {percentage:3.0f} %|{bar}| {n_fmt}/{total_fmt}, {remaining} left{postfix}"
# Bytes that may take over five seconds to read.
LARGE = 500_000_000
log = logging.getLogger(__name__)
# The innermost last; it alone logs its progress.
_running: list["Wait"] = []
# Blocks of `speaking` in which this process is.
_speaking = 0


class Wait:
    """Work in progress, which a thread of its own shows.

    Args:
        what: the work, as a line begins.
        total: all of it, in `unit`; None if that is not known.
        unit: what is counted, in the plural; "B" for bytes.
        done: how much of it was done before.
    """

    def __init__(self, what: str, total: int | None = None, unit: str = "", done: int = 0) -> None:
        self.bar: tqdm | None = None
        self.what = escape_controls(what)  # a bar shows it on the terminal as it is
        self.total = total
        self.unit = unit
        self.done = done
        self.done_before = done
        self.began = time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="waiting", daemon=True)

    def start(self) -> None:
        if sys.stderr.isatty() and rank() == 0:
            bar_format = None  # tqdm's own
            if self.total is None:
                bar_format = "{desc}: {elapsed}"
            elif self.unit != "B":
                bar_format = COUNTED
            self.bar = tqdm(
                desc=self.what,
                total=self.total,
                initial=self.done,
                unit=self.unit,
                unit_scale=self.unit == "B",
                bar_format=bar_format,
                dynamic_ncols=True,
                leave=False,
            )
        _running.append(self)
        self._thread.start()

    def end(self) -> None:
        _running.remove(self)
        self._ended.set()
        self._thread.join()
        if self.bar is not None:
            self._draw(self.bar)
            self.bar.close()

    def update(self, count: int = 1) -> None:
        """Count `count` more as done."""
        self.done += count

    def each(self, items: Iterable[T]) -> Iterator[T]:
        """Yield `items`; one is done when the next is requested."""
        for item in items:
            yield item
            self.update()

    def __str__(self) -> str:
        """Format what is done, and the time left at the mean speed so far."""
        seconds = time.monotonic() - self.began
        if self.total is None:
            return f"{self.what}: {clock(seconds)} so far"
        line = f"{self.what}: {self.amount(self.done)} of {self.amount()}"
        # Speed is that of this process: what was done before took time elsewhere.
        new = self.done - self.done_before
        if new and self.unit == "B":
            line += f", {new / seconds / 1e6:,.1f} MB/s"
        if new:
            seconds_left = seconds / new * (self.total - self.done)
            line += f", {clock(seconds_left)} left"
        return line

    def amount(self, part: int | None = None) -> str:
        """Format a part of the work, or all of it with its unit."""
        number = (self.total or 0) if part is None else part
        in_bytes = self.unit == "B"
        text = f"{number / 1e6:,.1f}" if in_bytes else f"{number:,}"
        if part is not None:
            return text
        unit = "MB" if in_bytes else _of(self.unit, number)
        return f"{text} {unit}"

    def _watch(self) -> None:
        while not self._ended.wait(self._pause()):
            if self.bar is not None:
                self._draw(self.bar)
            elif _running[-1:] == [self] and silence() >= PERIOD:
                log.info("%s", self)

    def _pause(self) -> float:
        """Return the seconds to the next look: of a bar one, else until a line is due."""
        return 1.0 if self.bar is not None else max(0.1, PERIOD - silence())

    def _draw(self, bar: tqdm) -> None:
        bar.n = self.done
        bar.refresh()


@contextlib.contextmanager
def waiting(
    what: str, total: int | None = None, unit: str = "", done: int = 0, quiet: bool = False
) -> Iterator[Wait]:
    """Log `what` before the block, its progress, and at the end, unless that comes soon, the time.

    Args:
        total: the work in `unit`, None if unknown; the block counts it, by `update` or `each`.
        done: how much of it was done before.
        quiet: without the first line, and without any within other work.
    """
    what = f"{rank_prefix()}{what}"
    wait = Wait(what, total=total, unit=unit, done=done)
    is_silent = rank() != 0 and not _speaking
    if is_silent or (quiet and _running):
        yield wait
        return
    if not quiet:
        amount = f": {wait.amount()}" if total else ""
        log.info("%s%s", what, amount)
    wait.start()
    try:
        yield wait
    finally:
        wait.end()
    seconds = time.monotonic() - wait.began
    if seconds >= SHORT:
        log.info("%s: done in %s", what, clock(seconds))


@contextlib.contextmanager
def speaking() -> Iterator[None]:
    """Let `waiting` log within the block on any rank: it holds a lock, or waits for one."""
    global _speaking
    _speaking += 1
    try:
        yield
    finally:
        _speaking -= 1


def rank() -> int:
    """Return the rank of this process as its launcher set it; 0 without one."""
    return int(os.environ.get("RANK", "0"))


def rank_prefix() -> str:
    """Return "rank 3: " for the lines of rank 3, and "" for those of rank 0."""
    return f"rank {rank()}: " if rank() else ""


def reading(what: str, files: Iterable[Path]) -> contextlib.AbstractContextManager[Wait | None]:
    """Return `waiting` for large files; small ones are read within five seconds, in silence."""
    size = sum(file.stat().st_size for file in files if file.is_file())
    return waiting(what) if size > LARGE else contextlib.nullcontext()


def _of(unit: str, number: int) -> str:
    """Return the plural `unit` as it goes with `number`: 1 batch, 2 batches; 1 step."""
    if number != 1:
        return unit
    return unit.removesuffix("es") if unit.endswith("ches") else unit.removesuffix("s")


def clock(seconds: float) -> str:
    """Format seconds: 133 as '2m13s', 7380 as '2h03m'."""
    all_minutes, seconds_left = divmod(round(seconds), 60)
    hours, minutes = divmod(all_minutes, 60)
    if hours:
        return f"{hours}h{minutes:02d}m"
    if minutes:
        return f"{minutes}m{seconds_left:02d}s"
    return f"{seconds_left}s"
