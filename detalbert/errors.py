"""The errors that a user reads: one line, what is wrong, where, what to do."""

import contextlib
import difflib
import re
import shutil
from collections.abc import Callable, Iterator
from typing import Any

# In https://USER:PASSWORD@HOST all before the "@"; of another scheme, whose USER may be no secret
# (abfs://CONTAINER@ACCOUNT), the password.
_LOGIN = re.compile(r"(https?://|://[^/?#\s:@]*:)[^/?#\s]*@")


class UserError(Exception):
    """A mistake that the user can fix. The text is one line: what is wrong, where, what to do.

    `train.py` prints it to standard error as `train.py: error: ...` and exits with status 2.
    """

    kind, status = "error", 2

    def __init__(self, text: str) -> None:
        super().__init__(hide_logins(" ".join(text.splitlines())))


class Unavailable(UserError):
    """Something outside that another try may find: a network, a hub, room on another machine.

    Printed as `train.py: unavailable: ...`, so that the experiments' log policies tell it from a
    mistake: Determined starts such a trial again, up to `max_restarts` times.
    """

    kind = "unavailable"


class Diverged(UserError):
    """Numbers of a training that are not finite: every rank raises it at the same step, and rank 0
    prints it. Exit status 1."""

    status = 1


def hide_logins(text: str) -> str:
    """`text` with "***" in place of the logins of addresses."""
    return _LOGIN.sub(r"\1***@", text)


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
    """Why something failed, on one line: a UserError's text; of others at most 120 characters of
    the system's word, the message's first line or the name of the error's class."""
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
