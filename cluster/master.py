"""A session with a Determined master whose answers are limited in time and size.

The login is that of `det`: DET_MASTER, and DET_USER and DET_PASS or the token that `det user login`
stored. A program that only seems to be a master (a login page, a proxy, a port that accepts and
stays mute) ends a command in one line. What is traded: the time limit is an alarm of the process,
so queries are made in its main thread.
"""

import contextlib
import signal
from collections.abc import Iterator
from typing import Any, NoReturn

import requests
import urllib3
from determined.common import api
from determined.common.api import authentication, bindings, certs, errors

from detalbert.errors import Unavailable, first_line

# Of one answer.
MAX_SECONDS = 18.0
MAX_BYTES = 2**28

LOGIN_CURE = "log in with `det user login`, or set DET_USER and DET_PASS"
# What a permission of the master's hides from this user.
HIDDEN = (errors.NotFoundException, errors.ForbiddenException)

_NO_CONNECTION = (errors.MasterNotFoundException, requests.exceptions.ConnectionError)
# JSON of another shape than the client's types.
_MALFORMED = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
_FAILURES: tuple[type[Exception], ...] = (
    errors.BadRequestException,
    errors.BadResponseException,
    bindings.APIHttpError,
    OSError,
    *_MALFORMED,
)


class BoundedSession(api.Session):
    """Determined's session; an answer that is too slow or too large is an error."""

    seconds = MAX_SECONDS

    def _make_http_session(self) -> requests.Session:
        http = super()._make_http_session()
        http.hooks["response"].append(_read_body)
        return http

    def _do_request(self, *arguments: Any, **options: Any) -> requests.Response:
        with time_limit(self.seconds):
            return super()._do_request(*arguments, **options)


def _read_body(response: requests.Response, **_: object) -> None:
    """Read at most MAX_BYTES of an answer, before requests reads all of it."""
    try:
        body = response.raw.read(MAX_BYTES + 1, decode_content=True)
    except urllib3.exceptions.HTTPError as error:
        raise requests.exceptions.ConnectionError(error) from None
    if len(body) > MAX_BYTES:
        raise requests.exceptions.RequestException(f"an answer of over {MAX_BYTES:,} bytes")
    response._content = body
    response._content_consumed = True  # type: ignore[attr-defined]  # no public way to set a body


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in the block after `seconds`, and each second after that: a library that
    takes it for a lost connection may try again.
    """

    def stop(*_: object) -> NoReturn:
        raise TimeoutError(f"no answer within {seconds:g} s")

    previous = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def login(address: str | None = None, user: str | None = None) -> BoundedSession:
    """Log in to the master at `address` as `user`, or as `det` would, without prompting.

    Raises:
        Unavailable: if no master answers there, or it accepts no stored login.
    """
    address = address or api.get_default_master_url()
    with reaching(address, problem=f"no master answers at {address}", cure="set DET_MASTER"):
        address = api.canonicalize_master_url(address)
        cert = certs.default_load(address)
        try:
            with time_limit(MAX_SECONDS):
                # A password of None would be asked for.
                token = authentication.login_with_cache(address, user, "", cert)
            session = BoundedSession(address, token.username, token.token, cert, max_retries=0)
            # A token of the environment is tried by its first use only.
            session.get("/api/v1/me")
        except errors.ForbiddenException:
            raise Unavailable(
                f"{address} does not know this user and password", cure=LOGIN_CURE
            ) from None
    return session


@contextlib.contextmanager
def reaching(address: str, problem: str, cure: str) -> Iterator[None]:
    """Convert the failures of a query to Unavailable: no login, or problem, reason and cure."""
    try:
        yield
    except errors.UnauthenticatedException:
        raise Unavailable(f"{address} wants a login", cure=LOGIN_CURE) from None
    except _FAILURES as error:
        reason = first_line(error)
        if isinstance(error, _MALFORMED):
            reason = "not an answer of a master"
        if not isinstance(error, _NO_CONNECTION):
            problem = f"{problem} ({reason})"
        raise Unavailable(problem, cure=cure) from None
