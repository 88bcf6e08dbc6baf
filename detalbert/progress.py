"""Progress of what takes a while: a bar by tqdm on a terminal, elsewhere lines of the log.

Rank 0 alone shows it. What was traded: work that does not count its steps has a line before and one
after it, and nothing in between.
"""

import contextlib
import logging
import sys
import time
from collections.abc import Iterator

from tqdm import tqdm

from detalbert.escapes import escape_controls
from detalbert.log import rank

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
        bar = {
            "file": sys.stderr,
            "dynamic_ncols": True,
            "bar_format": COUNTED if total and unit != "B" else None,
            "mininterval": 1.0,
        }
        lines = {
            "file": _Lines(),
            "ncols": 0,  # the numbers alone
            "position": 0,
            "delay": PERIOD,
            "mininterval": PERIOD,
        }
        super().__init__(
            desc=escape_controls(what),
            total=total,
            initial=done,
            unit="B" if unit == "B" else f" {unit}",
            unit_scale=unit == "B",
            disable=rank() != 0 or not unit,
            miniters=1,
            leave=False,
            **(bar if sys.stderr.isatty() else lines),
        )


class _Lines:
    """File off a terminal: what tqdm would draw becomes a line of the log."""

    def write(self, text: str) -> None:
        line = text.strip()
        if line:
            log.info("%s", line)


@contextlib.contextmanager
def waiting(what: str, total: int | None = None, unit: str = "") -> Iterator[Bar]:
    """Log `what` before the block, its progress, and at the end, unless that comes soon, the time.

    Args:
        what: the work.
        total: all of it, in `unit`, which the block counts by `update`.
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
