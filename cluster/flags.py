"""Command lines: prices, numbers with limits, the libraries that a command needs."""

import argparse
import contextlib
import math
from collections.abc import Callable, Iterator
from datetime import date

from detalbert.command import existing_file
from detalbert.errors import UserError


def add_price_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of every command that shows prices; `today` is this day if it is not given."""
    parser.add_argument(
        "--prices",
        type=existing_file,
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
