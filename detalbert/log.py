"""Logging: each line starts with its level, as Determined's log shipper expects.

The shipper (`ship_logs.py` of 0.38.1) takes `INFO: `, `WARNING: ` or `ERROR: ` at the start of a
line, after `[rank=N] `, for the line's level; a filter on levels in the WebUI or in `det trial logs
--level` hides a line without one.
"""

import errno
import logging
import os
import sys
import threading
import warnings
from collections.abc import Callable
from typing import NoReturn

from detalbert.errors import UserError
from detalbert.escapes import one_line

log = logging.getLogger(__name__)


class _Stderr(logging.Handler):
    """Handler for the current standard error, looked up for each line."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
            if sys.stderr.isatty():
                from tqdm import tqdm  # not there yet when the hook of a task reads its config

                tqdm.write(line, file=sys.stderr)  # above the bars
            else:
                sys.stderr.write(line + "\n")
        except Exception:
            self.handleError(record)

    def format(self, record: logging.LogRecord) -> str:
        """Return the message with the level before every line, which is cut, without control
        characters.
        """
        # Python splits lines at characters that a log shipper does not know, such as form feed.
        lines = super().format(record).splitlines() or [""]
        return "\n".join(f"{record.levelname}: {one_line(line)}" for line in lines)


def rank() -> int:
    """Return the rank of this process as its launcher set it; 0 without one."""
    return int(os.environ.get("RANK", "0"))


def fail(command: str, error: UserError) -> int:
    """Print `COMMAND: error: TEXT` to standard error and return the exit status. The line begins
    with its level only on a cluster, for the log shipper. An error of all ranks is rank 0's to say.
    """
    if error.on_all_ranks and rank() != 0:
        return error.status
    line = one_line(f"{command}: {error.kind}: {error}")
    if "DET_TASK_TYPE" in os.environ:
        log.error("%s", line)
    else:
        print(line, file=sys.stderr)
    return error.status


def exit_with(command: str, main: Callable[[], int]) -> NoReturn:
    """Exit with the status of `main`, which prints to standard output. A reader that wants no more
    (`| head`) is no error, and a full disk is one line.
    """
    try:
        status = main()
        sys.stdout.flush()
        sys.exit(status)
    except BrokenPipeError:
        status = 0
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        status = fail(command, UserError("the disk of its output is full"))
    # Python writes what is left at its exit.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(status)


def start_logging() -> None:
    """Send the package's lines from INFO on, those of others from WARNING on, Python's warnings and
    uncaught exceptions to standard error.
    """
    logging.getLogger().addHandler(_HANDLER)  # once, however often this is called
    logging.getLogger("detalbert").setLevel(logging.INFO)
    logging.captureWarnings(True)
    sys.excepthook = lambda *error: log.error("uncaught exception", exc_info=error)


def quiet_libraries() -> None:
    """Silence logs of libraries that would interrupt the progress lines; keep their warnings."""
    import transformers  # which takes seconds: a hook of a task logs, too

    transformers.utils.logging.disable_progress_bar()
    # matplotlib's: a container has no cache of fonts yet.
    for name in "determined transformers huggingface_hub matplotlib".split():
        logging.getLogger(name).setLevel(logging.ERROR)
    threading.excepthook = _skip_write_errors
    warnings.filterwarnings("ignore", message="Initializing zero-element tensors")  # an error comes


def _skip_write_errors(args: threading.ExceptHookArgs) -> None:
    """Leave out the traceback of TensorBoard's thread: `flush` raises its error again."""
    if not isinstance(args.exc_value, OSError):
        threading.__excepthook__(args)


_HANDLER = _Stderr()
