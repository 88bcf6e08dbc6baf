"""The errors that a user reads: one line, what is wrong, where, what to do."""

import contextlib
import difflib
import shutil
from collections.abc import Callable, Iterator
from typing import Any


class UserError(Exception):
    """A mistake that the user can fix. The text is one line: what is wrong, where, what to do.

    `train.py` prints it to standard error as `train.py: error: ...` and exits with status 2.
    """

    kind = "error"

    def __init__(self, text: str) -> None:
        super().__init__(" ".join(text.splitlines()))


class Unavailable(UserError):
    """Something outside that another try may find: a network, a hub, room on another machine.

    Printed as `train.py: unavailable: ...`, so that the experiments' log policies tell it from a
    mistake: Determined starts such a trial again, up to `max_restarts` times.
    """

    kind = "unavailable"


def unknown_key(key: str, section: str, known: list[str]) -> UserError:
    """The error for a key that nobody reads, with the nearest known one."""
    near = difflib.get_close_matches(key, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(sorted(known))}"
    return UserError(f"{section}.{key}: unknown key; {hint}")


@contextlib.contextmanager
def as_user_error(make: Callable[[Exception], UserError]) -> Iterator[None]:
    """Raise `make(error)` for what libraries raise in the block, where they read files that may be
    damaged or of another make: errors of any class, a bare Exception too."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise make(error) from None


def first_line(error: BaseException) -> str:
    """Why something failed, on one line: the text of a UserError; of another error at most 120
    characters of the system's word, the message's first line or the name of the error's class."""
    if isinstance(error, UserError):
        return str(error)
    text: Any = getattr(error, "strerror", None) or str(error).strip() or type(error).__name__
    if isinstance(error, shutil.Error) and isinstance(error.args[0], list):  # copytree's, per file
        text = error.args[0][0][2]  # why the first was not copied
    return _cut(str(text).splitlines()[0])


def all_lines(error: BaseException) -> str:
    """As `first_line`, of an error whose further lines say more."""
    return _cut(" ".join(str(error).split()) or type(error).__name__)


def _cut(line: str) -> str:
    return line if len(line) <= 120 else f"{line[:116]} ..."
