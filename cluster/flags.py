"""Command lines: numbers with limits, and the libraries that a command needs."""

import contextlib
import math
from collections.abc import Callable, Iterator

from detalbert.errors import UserError


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
