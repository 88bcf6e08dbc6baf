"""Command lines: mistakes in flags as one line, told before a command imports what takes seconds,
and the libraries that a command needs.

It imports the standard library only, so that every command can begin with it.
"""

import argparse
import contextlib
import math
import os
import re
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

from detalbert import __version__
from detalbert.errors import UserError, as_raised
from detalbert.log import fail

# In the head of every page that a command writes.
PAGE_MARK = b'<meta name="generator" content="detalbert">'


class Parser(argparse.ArgumentParser):
    """A parser that raises UserError in place of printing its usage."""

    def __init__(self, prog: str, **options: Any) -> None:
        # The descriptions are docstrings with examples, whose lines argparse would fold.
        lines = argparse.RawDescriptionHelpFormatter
        super().__init__(prog, formatter_class=lines, **options)
        self.add_argument("--version", action="version", version=f"detalbert {__version__}")

    def error(self, message: str) -> NoReturn:
        raise UserError(message, cure="see --help")


def existing_file(text: str) -> Path:
    """Return the path of a file that a flag names. Raises UserError if it is not there."""
    # A pipe of the shell, `<(...)`, is one, too. It has no name: a pipe that has one may wait for
    # ever, and a device has no end.
    is_pipe = os.path.exists(text) and not os.path.exists(os.path.realpath(text))
    if not os.path.isfile(text) and not is_pipe:
        raise UserError("no such file", key=text, cure="name one that is there")
    return Path(text)


def page_file(text: str) -> Path:
    """Return the path that a flag names for a page. Raises UserError if anything is there but a
    page of ours.
    """
    path = Path(text)
    if path.exists() and not (path.is_file() and PAGE_MARK in path.read_bytes()[:1000]):
        problem = "it would be replaced, and this command did not write it"
        raise UserError(problem, key=text, cure="give another file")
    return path


def number(flag: str, low: float, high: float) -> Callable[[str], float]:
    """Return a parser of a flag's number that raises UserError, naming the flag, if invalid."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan  # which is within no limits
        if not low <= value <= high:
            raise UserError(
                f"expected a number from {low:,.10g} to {high:,.10g}",
                key=f"{flag} {text}",
            )
        return value

    return read


def moment(text: str) -> Any:
    """Parse the time of a flag, in UTC if it names no zone; argparse names the flag."""
    import pandas as pd  # takes a second: --help does without

    # pandas reads "now" and "5" as times, too.
    with contextlib.suppress(ValueError):
        if re.match(r"\d{4}-\d\d-\d\d", text):
            return pd.to_datetime(text, utc=True)
    raise argparse.ArgumentTypeError(f"{text!r} is not as 2026-11-20 or 2026-11-20T10:00:00Z")


def add_price_pool(parser: argparse.ArgumentParser) -> None:
    """Add the flag that prices a pool whose machines no master launches."""
    parser.add_argument(
        "--price-pool",
        action="append",
        default=[],
        metavar="POOL=INSTANCE[:spot]",
        help="price a pool of your own machines",
    )


def refuse_first(command: str, check: Callable[[], object]) -> None:
    """Call `check` before `command` imports what only its work needs; if it raises UserError, end
    this process with one line. Then `explain_missing`.
    """
    try:
        check()
    except (UserError, OSError) as error:
        mistake = as_raised(error)
        if mistake is None:
            raise
        sys.exit(fail(command, mistake))
    explain_missing(command)


def explain_missing(command: str) -> None:
    """End `command` with one line if this Python lacks our packages."""
    if find_spec("determined") is None:
        missing = UserError(
            f"{sys.executable} lacks determined",
            cure="use .venv/bin/python, which make train makes, or . .venv/bin/activate",
        )
        sys.exit(fail(command, missing))


@contextlib.contextmanager
def needing(extra: str) -> Iterator[None]:
    """Convert a failed import to UserError that names the extra of pyproject.toml that has it."""
    try:
        yield
    except ImportError as error:
        missing = str(error.name).split(".")[0]
        if missing in ("cluster", "detalbert", "reports"):
            raise  # a fault of the package itself
        raise UserError(
            f"{missing} is not installed",
            cure=f"run pip install -c constraints.txt '.[{extra}]'",
        ) from None
