"""Parsing of command lines whose mistakes are one line."""

import argparse
import math
from collections.abc import Callable
from typing import NoReturn

from detalbert.errors import UserError


class Parser(argparse.ArgumentParser):
    """A parser that raises UserError in place of printing its usage."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see python -m {self.prog} --help")


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
