"""Command lines: mistakes in flags as one line, told before a command imports what takes seconds.

It imports the standard library only, so that every command can begin with it.
"""

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from detalbert import __version__
from detalbert.errors import UserError
from detalbert.log import fail

_VENV = Path(__file__).resolve().parents[1] / ".venv"
_OURS = ("benchmarks", "cluster", "detalbert", "lm", "pretrain", "reports")


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
        word = message.removeprefix("unrecognized arguments: ").split()[0]
        is_setting = "=" in word and not word.startswith("-")
        cure = f"put --set before {word}" if is_setting else "see --help"
        raise UserError(message, cure=cure)


def existing_file(text: str) -> Path:
    """Return the path of a file that a flag names. Raises UserError if it is not there."""
    # A pipe is one, too; of a text that is too long for a name there is none.
    if os.path.isdir(text) or not os.path.exists(text):
        raise UserError("no such file", key=text, cure="name one that is there")
    return Path(text)


def refuse_first(command: str, check: Callable[[], object]) -> None:
    """Call `check` before `command` imports what only its work needs; if it raises UserError, end
    this process with one line. Then `explain_missing`.
    """
    try:
        check()
    except UserError as error:
        sys.exit(fail(command, error))
    explain_missing(command)


def explain_missing(command: str) -> None:
    """From now on, end `command` with status 2 and one line if a package is not installed.
    `start_logging` ends this.
    """
    others = sys.excepthook

    def explain(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        package = (getattr(error, "name", None) or "").split(".")[0]
        in_venv = Path(sys.prefix).resolve() == _VENV.resolve()
        # A fault of this package, or of the environment itself, needs its traceback.
        if kind is not ModuleNotFoundError or package in _OURS or in_venv:
            return others(kind, error, trace)
        missing = UserError(
            f"{sys.executable} lacks {package}",
            cure="use .venv/bin/python, which make train makes, or . .venv/bin/activate",
        )
        sys.exit(fail(command, missing))

    sys.excepthook = explain
