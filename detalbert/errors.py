"""Errors shown to the user: one line with what is wrong, where, and what to do."""

import contextlib
import difflib
import shutil
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from detalbert.escapes import escape_controls
from detalbert.redact import hide_secrets


class UserError(Exception):
    """A mistake that the user can fix. The text is one line: what is wrong, where, what to do;
    without control characters, logins and line breaks that it was made with.

    A command prints it to standard error as `COMMAND: error: ...` and exits with `status`.
    """

    kind, status = "error", 2
    on_all_ranks = False  # raised on all of them; rank 0 prints it

    def __init__(self, text: str) -> None:
        super().__init__(escape_controls(hide_secrets(" ".join(text.splitlines()))))


class Unavailable(UserError):
    """A failure that a retry may overcome: of a network, a hub, room on another machine.

    Printed as `train.py: unavailable: ...`, by which the experiments' log policies distinguish it
    from a mistake: Determined restarts such a trial, up to `max_restarts` times.
    """

    kind, status = "unavailable", 4


class NotFinite(UserError):
    """A model's numbers are not finite."""

    status = 1


class Panic(RuntimeError):
    """A library in Rust came upon what it takes for impossible, such as a hopeless regex."""


class Diverged(NotFinite):
    """Training has non-finite numbers; raised at the same step of all ranks."""

    on_all_ranks = True


def as_raised(error: BaseException | None) -> UserError | None:
    """Return the UserError that `error` is, or from which a library raised it (Determined raises
    ValueError from whatever a reducer raises); None without one.
    """
    while error is not None and not isinstance(error, UserError):
        error = error.__cause__
    return error


class UnknownKey(UserError):
    """A key that a section does not have; a typo, if it is near one that the section has. `hint`:
    what to use, if that is known better than by the spelling.
    """

    def __init__(
        self, key: str, section: str, known: Iterable[str], hint: str | None = None
    ) -> None:
        hint = hint or nearest(key, known)
        super().__init__(f"{section}.{key}: unknown key; {hint}")
        self.key, self.is_typo = key, hint.startswith("did you mean")


def nearest(name: str, known: Iterable[str]) -> str:
    """Return `did you mean 'x'?`, or the list of known names if none is near."""
    near = difflib.get_close_matches(name, known := sorted(known), n=1)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"


@contextlib.contextmanager
def as_user_error(make: Callable[[Exception], UserError]) -> Iterator[None]:
    """Convert any exception but UserError in the block to `make(error)`: libraries that read a
    damaged file raise errors of any class, even a bare Exception, or panic.
    """
    try:
        with panics_raised():
            yield
    except UserError:
        raise
    except Exception as error:
        raise make(error) from None


@contextlib.contextmanager
def panics_raised() -> Iterator[None]:
    """Convert a panic of a library in Rust to Panic. PyO3 raises what is no Exception, of a class
    that cannot be imported, so that no worker process can send it either.
    """
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise Panic(str(error)) from None


def first_line(error: BaseException) -> str:
    """Return a one-line reason: a UserError's text, or at most 120 characters of the system's
    message, the first line of the error's text or the name of its class.
    """
    if isinstance(error, UserError):
        return str(error)
    text: Any = getattr(error, "strerror", None) or str(error).strip() or type(error).__name__
    if isinstance(error, shutil.Error) and isinstance(error.args[0], list):  # copytree's, per file
        text = error.args[0][0][2]  # why the first was not copied
    return _cut(str(text).splitlines()[0])


def all_lines(error: BaseException) -> str:
    """Return a reason as `first_line` does, for errors whose further lines say more."""
    return _cut(" ".join(str(error).split()) or type(error).__name__)


def _cut(line: str) -> str:
    return line if len(line) <= 120 else f"{line[:116]} ..."
