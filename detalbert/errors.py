"""Errors shown to the user: one line with what is wrong, where, and what to do.

All classes stand here, as one tree. An error's parts are data: whoever catches one reads `key`,
`problem` and `cure`, and never takes its text apart. What was traded: a cause has no traceback, so
the line must say all that a user needs.
"""

import contextlib
import copy
import difflib
import errno
from collections.abc import Callable, Iterable, Iterator

from detalbert.escapes import one_line
from detalbert.redact import hide_secrets

MOST_NAMES = 60  # that a cure lists


class UserError(Exception):
    """A mistake that the user can fix, shown as one line: `KEY: PROBLEM; CURE`.

    A command prints it to standard error as `COMMAND: error: ...` and exits with `status`. The
    parts lose control characters, logins and line breaks that they were made with.

    Args:
        problem: what is wrong.
        key: what it is wrong with: a config's key, a flag, a file with its line, a question.
        cure: what to do.
    """

    # The word after the command's name, and the exit status.
    kind, status = "error", 2
    # Whether it is raised on all ranks; rank 0 prints it then.
    on_all_ranks = False

    def __init__(self, problem: str, *, key: str = "", cure: str = "") -> None:
        self.problem = _clean(problem)
        self.key = _clean(key, limit=300)
        self.cure = _clean(cure)
        super().__init__(self.problem)

    def __str__(self) -> str:
        return f"{self.key}: {self.detail}" if self.key else self.detail

    @property
    def detail(self) -> str:
        """The line without its key."""
        return f"{self.problem}; {self.cure}" if self.cure else self.problem

    def under(self, key: str) -> "UserError":
        """Return the same error of another key: the flag that a user gave for a config's key."""
        # A copy, whose class may have a constructor of another form.
        renamed = copy.copy(self)
        renamed.key = _clean(key, limit=300)
        return renamed


class SectionError(UserError):
    """The problems of a config or a section, all in one line; its key is that of the first."""

    def __init__(self, problems: list[UserError]) -> None:
        first = problems[0]
        super().__init__(first.problem, key=first.key, cure=first.cure)
        self.args = (problems,)
        self.problems = problems

    def __str__(self) -> str:
        if len(self.problems) == 1:
            return super().__str__()  # its key may be renamed
        return " | ".join(str(problem) for problem in self.problems)


class Different(UserError):
    """The two sides of a benchmark's stage give different results: their speeds say nothing."""

    kind, status = "not equal", 1


class NotFinite(UserError):
    """A model's numbers are not finite."""

    status = 1


class Diverged(NotFinite):
    """Training has non-finite numbers; raised at the same step of all ranks."""

    on_all_ranks = True


class Unavailable(UserError):
    """A failure that a retry may overcome: of a network, a hub, room on another machine.

    Printed as `train.py: unavailable: ...`, by which the experiments' log policies distinguish it
    from a mistake: Determined restarts such a trial, up to `max_restarts` times.
    """

    kind, status = "unavailable", 4


class PeerLost(Unavailable):
    """Another rank ended. Schedulers retry status 4 without end; that rank may have a mistake."""

    status = 5


def _clean(text: str, limit: int = 1_000) -> str:
    """Return `text` as one line of at most `limit` characters, without secrets and control
    characters.
    """
    return one_line(hide_secrets(" ".join(text.splitlines())), limit)


def as_raised(error: BaseException | None) -> UserError | None:
    """Return the UserError that `error` is, or from which a library raised it (Determined raises
    ValueError from whatever a reducer raises), or that of a text that is no name for a file, being
    too long for one; None without any.
    """
    while error is not None and not isinstance(error, UserError):
        if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
            return UserError("too long for the name of a file", key=str(error.filename))
        error = error.__cause__
    return error


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: "1 row", "1,200 rows"."""
    ending = "" if number == 1 else "s"
    return f"{number:,} {noun}{ending}"


def nearest(name: str, known: Iterable[str]) -> str:
    """Return `did you mean 'x'?`, or if none is near the known names, of many their number."""
    names = sorted(known)
    matches = difflib.get_close_matches(name, names, n=1)
    if matches:
        return f"did you mean {matches[0]!r}?"
    if len(names) > MOST_NAMES:
        return f"none of the {len(names)} known names is near"
    return f"known: {', '.join(names) or 'none'}"


def unknown_key(name: str, section: str, known: Iterable[str]) -> UserError:
    """Return the error for a key that a section does not have.

    Args:
        name: the key.
        section: where it stands, such as `hyperparameters`; empty: in the config itself.
        known: the section's keys.
    """
    key = f"{section}.{name}".lstrip(".")
    return UserError("unknown key", key=key, cure=nearest(name, known))


@contextlib.contextmanager
def as_user_error(make: Callable[[Exception], UserError]) -> Iterator[None]:
    """Convert any exception but UserError in the block to `make(error)`: libraries that read a
    damaged file raise errors of any class, even a bare Exception, or panic.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise make(error) from None
    except BaseException as error:
        # A panic of a library in Rust is no Exception, and its class cannot be imported.
        if type(error).__name__ != "PanicException":
            raise
        raise make(RuntimeError(str(error))) from None


def first_line(error: BaseException) -> str:
    """Return a one-line reason: a UserError's text, or at most 120 characters of the system's
    message, the error's text or the name of its class.
    """
    if isinstance(error, UserError):
        return str(error)
    text = getattr(error, "strerror", None) or str(error)
    return one_line(" ".join(str(text).split()) or type(error).__name__, 120)
