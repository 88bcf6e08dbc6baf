"""Logging: each line starts with its level, as Determined's log shipper expects.

The shipper (`ship_logs.py` of 0.38.1) takes `INFO: `, `WARNING: ` or `ERROR: ` at the start of a
line, after `[rank=N] `, for the line's level; a filter on levels in the WebUI or in `det trial logs
--level` hides a line without one.
"""

import logging
import sys
import traceback
import warnings
from types import TracebackType

log = logging.getLogger(__name__)


class _Stderr(logging.StreamHandler):
    """Handler for the current standard error, looked up for each line."""

    stream = property(lambda self: sys.stderr, lambda self, stream: None)


class _Levels(logging.Formatter):
    """Formatter that puts the level before every line of a message."""

    def format(self, record: logging.LogRecord) -> str:
        lines = super().format(record).splitlines() or [""]
        return "\n".join(f"{record.levelname}: {line}" for line in lines)


def start_logging() -> None:
    """Send the package's lines from INFO on, those of others from WARNING on, Python's warnings and
    uncaught exceptions to standard error.
    """
    _HANDLER.setFormatter(_Levels())
    logging.getLogger().addHandler(_HANDLER)  # once, however often this is called
    logging.getLogger("detalbert").setLevel(logging.INFO)
    logging.captureWarnings(True)
    warnings.formatwarning = _one_line  # type: ignore[assignment]  # it takes more, by any name
    sys.excepthook = _say_uncaught


_HANDLER = _Stderr()


def _one_line(message: Warning | str, category: type[Warning], *_: object) -> str:
    return f"{category.__name__}: {' '.join(str(message).split())}"


def _say_uncaught(
    kind: type[BaseException], error: BaseException, where: TracebackType | None
) -> None:
    if issubclass(kind, KeyboardInterrupt):
        return sys.__excepthook__(kind, error, where)
    log.error("%s", "".join(traceback.format_exception(kind, error, where)).rstrip())
