"""Command lines: mistakes as one line, numbers with limits, the libraries that a command needs.

Flags are plain argparse. Only its usage message, which hides the mistake among all flags, is a
UserError instead, and imports come after the help: `--help` is quick and needs no library.
"""

import argparse
import contextlib
import math
import signal
import sys
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any, NoReturn

from detalbert import __version__
from detalbert.arguments import with_cure
from detalbert.errors import UserError
from detalbert.missing import explain_missing


class Parser(argparse.ArgumentParser):
    """A parser that raises UserError in place of printing its usage."""

    def __init__(
        self,
        prog: str | None = None,
        description: str | None = None,
        formatter_class: Any = argparse.RawDescriptionHelpFormatter,
        **others: Any,  # of a subcommand's parser
    ) -> None:
        # The descriptions are docstrings with examples, whose lines argparse would fold.
        super().__init__(
            prog=prog, description=description, formatter_class=formatter_class, **others
        )
        self.add_argument("--version", action="version", version=f"detalbert {__version__}")

    def error(self, message: str) -> NoReturn:
        raise UserError(with_cure(message), cure=f"see python -m {self.prog} --help")

    def help_first(self) -> None:
        """Print the help, if it is asked for, before a command imports what only its work needs."""
        explain_missing(self.prog)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` is no error
        if {"-h", "--help", "--version"} & {*sys.argv}:
            self.parse_args()


def add_price_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of every command that shows prices; `today` is this day if it is not given."""
    parser.add_argument(
        "--prices",
        type=Path,
        metavar="YAML",
        help="price file (default: cluster/facts/prices.yaml)",
    )
    parser.add_argument(
        "--region",
        metavar="R",
        help="AWS region of the prices (default: each pool's, else the price file's)",
    )
    parser.add_argument(
        "--live",
        nargs="?",
        const="must",
        choices=["try", "must"],
        metavar="try",
        help="AWS's prices; without an answer exit 4, or with =try the file's",
    )
    parser.add_argument(
        "--today",
        type=date.fromisoformat,
        default=date.today(),
        help="to tell stale prices by",
    )


def number(flag: str, low: float, high: float, whole: bool = False) -> Callable[[str], float]:
    """Return a parser of a flag's number that raises UserError, naming the flag, if invalid."""

    def read(text: str) -> float:
        try:
            value = int(text) if whole else float(text)
        except ValueError:
            value = math.nan  # which is within no limits
        if not low <= value <= high:
            kind = "whole number" if whole else "number"
            raise UserError(
                f"expected a {kind} from {low:,.10g} to {high:,.10g}",
                key=f"{flag} {text}",
            )
        return value

    return read


@contextlib.contextmanager
def needing(requirements: str) -> Iterator[None]:
    """Convert a failed import of a library to UserError that says how to install it."""
    try:
        yield
    except ImportError as error:
        missing = str(error.name).split(".")[0]
        if missing in ("cluster", "detalbert", "reports"):
            raise  # a fault of the package itself
        raise UserError(
            f"{missing} is not installed",
            cure=f"run pip install -r {requirements}",
        ) from None
