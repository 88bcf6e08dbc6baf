"""The errors that a user reads: one line, what is wrong, where, what to do."""

import difflib
import re

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


def first_line(error: BaseException) -> str:
    """Why something failed, on one line: the system's word, the message's first line or the name
    of the error's class."""
    text = getattr(error, "strerror", None) or str(error).strip() or type(error).__name__
    return str(text).splitlines()[0]
