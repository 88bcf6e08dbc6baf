"""Command lines: flags from YAML, mistakes as one line, and the libraries that a command needs."""

import argparse
import contextlib
import math
import signal
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any, NoReturn

import yaml

from detalbert.errors import UserError

FLAGS = Path(__file__).with_suffix(".yaml")


class Parser(argparse.ArgumentParser):
    """A parser that raises UserError in place of printing its usage."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**{"formatter_class": argparse.RawDescriptionHelpFormatter, **given})

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see python -m {self.prog} --help")

    def help_first(self) -> None:
        """Print the help, if it is asked for, before a command imports what only its work needs."""
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` is no error
        if {"-h", "--help"} & {*sys.argv}:
            self.parse_args()

    def add_flags(self, *groups: str, file: Path = FLAGS) -> "Parser":
        """Add the flags of groups of a flags.yaml; `today` is this day if they do not set it."""
        facts = yaml.safe_load(file.read_text(encoding="utf-8"))
        exclusive: dict[Any, Any] = defaultdict(self.add_mutually_exclusive_group, {None: self})
        for flag, given in (item for group in groups for item in facts[group].items()):
            if "number" in given:
                given["type"] = number(flag, *given.pop("number"))
            if "kind" in given:
                given["type"] = KINDS[given.pop("kind")]
            exclusive[given.pop("exclusive", None)].add_argument(flag, **given)
        self.set_defaults(today=date.today())
        return self


def number(flag: str, low: float, high: float, whole: bool = False) -> Callable[[str], float]:
    """Return a parser of a flag's number that raises UserError, naming the flag, if invalid."""

    def read(text: str) -> float:
        try:
            value = int(text) if whole else float(text)
        except ValueError:
            value = math.nan
        if not low <= value <= high:
            kind = "whole number" if whole else "number"
            raise UserError(f"{flag} {text}: expected a {kind} from {low:,.10g} to {high:,.10g}")
        return value

    return read


def _time(text: str) -> Any:
    from cluster.records import parse_time  # --help needs none of its libraries

    return parse_time(text)


KINDS: dict[str, Any] = {"path": Path, "day": date.fromisoformat, "time": _time, "int": int}


@contextlib.contextmanager
def needing(requirements: str) -> Iterator[None]:
    """Convert a failed import of a library to UserError that says how to install it."""
    try:
        yield
    except ImportError as error:
        missing = str(error.name).split(".")[0]
        if missing in ("cluster", "detalbert", "reports"):
            raise
        raise UserError(f"{missing} is not installed; run pip install -r {requirements}") from None
