"""Progress of what takes a while: a bar by tqdm on a terminal, elsewhere lines of the log.

Rank 0 alone shows it. What was traded: work that does not count its steps has a line before and one
after it, and nothing in between.
"""

import contextlib
import logging
import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from tqdm import tqdm

from detalbert.escapes import escape_controls
from detalbert.log import rank

T = TypeVar("T")
# Seconds from one line of a work to the next.
PERIOD = 30.0
# Seconds of work whose end is not logged.
SHORT = 5.0
# A bar on a terminal: tqdm's own, without steps per second, so that there is room for more.
COUNTED = "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt}, {remaining} left{postfix}"
log = logging.getLogger(__name__)


class Bar(tqdm):
    """A bar on a terminal; elsewhere a line after each PERIOD.

    Args:
        what: the work.
        total: all of it, in `unit`; None if that is not known.
        unit: what is counted, in the plural; "B" for bytes; without one nothing is shown.
        done: how much of it was done before.
    """

    monitor_interval = 0  # no thread: each update looks at the clock

    def __init__(self, what: str, total: int | None, unit: str, done: int = 0) -> None:
        is_terminal = sys.stderr.isatty()
        super().__init__(
            desc=escape_controls(what),
            total=total,
            initial=done,
            unit="B" if unit == "B" else f" {unit}",
            unit_scale=unit == "B",
            disable=rank() != 0 or not unit,
            file=sys.stderr if is_terminal else _Lines(),
            dynamic_ncols=is_terminal,
            ncols=0,  # off a terminal: the numbers alone
            bar_format=COUNTED if is_terminal and total and unit != "B" else None,
            position=None if is_terminal else 0,
            delay=0.0 if is_terminal else PERIOD,
            mininterval=1.0 if is_terminal else PERIOD,
            miniters=1,
            leave=False,
        )

    def each(self, items: Iterable[T]) -> Iterator[T]:
        """Yield `items`; one is done when the next is requested."""
        for item in items:
            yield item
            self.update()


class _Lines:
    """File off a terminal: what tqdm would draw becomes a line of the log."""

    def write(self, text: str) -> None:
        line = text.strip()
        if line:
            log.info("%s", line)

    def flush(self) -> None:
        pass


@contextlib.contextmanager
def waiting(what: str, total: int | None = None, unit: str = "") -> Iterator[Bar]:
    """Log `what` before the block, its progress, and at the end, unless that comes soon, the time.

    Args:
        what: the work.
        total: all of it, in `unit`, which the block counts by `update` or `each`.
        unit: what is counted, in the plural; "B" for bytes.
    """
    is_chief = rank() == 0
    if is_chief:
        log.info("%s", what)
    began = time.monotonic()
    with Bar(what, total=total, unit=unit) as bar:
        yield bar
    seconds = time.monotonic() - began
    if is_chief and seconds >= SHORT:
        log.info("%s: done in %s", what, tqdm.format_interval(seconds))
