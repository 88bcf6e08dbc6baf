"""HTTP around the application: what uvicorn and Starlette leave open, and who may ask.

uvicorn closes no connection whose client sends nothing, or does not read: `Clients` does. Its h11
bounds headers and takes one request of a connection after another; httptools, which is faster,
parses without bound all that a client sends ahead. A foreign web page can point its own name at
this machine (DNS rebinding), but its requests carry that name in Host.
"""

import asyncio
import hmac
import itertools
import math
import os
import resource
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import uvicorn
from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from prometheus_client import CollectorRegistry, Counter, Histogram
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from detalbert.errors import UserError, as_user_error, first_line

# Limits of a request, and of all clients together.
HEAD = 1 << 16  # bytes of headers
BODY = 1 << 20  # bytes
BODIES = 32 << 20  # bytes of all bodies at once
CONTEXT = 200_000  # characters
WAITING = 64  # questions behind those that the model works on
SECONDS = 30.0  # for an answer
PATIENCE = 10.0  # seconds that a client may take to send a request, and to read a response
CONNECTIONS = 500
_BUFFER = 1 << 16  # bytes
_BURST = 2000  # connections until `Clients.close_late` looks again

# Names of hosts, and paths by who may ask for them.
LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
ANYWHERE = ("0.0.0.0", "::")  # hosts to serve on that are all addresses of this machine
PATHS = ("/", "/answer", "/answers", "/health", "/metrics", "/openapi.json")
OPEN = ("/", "/health")  # need no token: the page holds nothing, and asks for it
PROBES = ("/health", "/metrics")  # for load balancers and monitors, by any name
_DURATIONS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)  # seconds
_HINTS = {  # Starlette's short texts, completed
    "Content Too Large": f"at most {BODY:,} bytes are read; cut the text",
    "Invalid host header": "not served under this Host; see --host-name",
}


def error_response(
    status: int, text: str, headers: Mapping[str, str] | None = None
) -> JSONResponse:
    """Return an error as one line of JSON."""
    content = {"error": _HINTS.get(text, text)}
    return JSONResponse(content, status_code=status, headers=headers)


async def _as_line(request: Request, error: Exception) -> JSONResponse:
    """Return the response for an error that ended a request."""
    if isinstance(error, HTTPException):
        return error_response(error.status_code, str(error.detail), error.headers)
    if isinstance(error, UserError):
        return error_response(422, str(error))
    if not isinstance(error, RequestValidationError):
        return error_response(500, "the model failed on this request; the server's log says how")
    if "json" not in request.headers.get("content-type", ""):
        return error_response(
            422, "not read as JSON; send the header Content-Type: application/json"
        )
    faults = []
    for fault in error.errors():
        place = ".".join(map(str, fault["loc"]))
        faults.append(f"{place}: {fault['msg']}")
    return error_response(422, "; ".join(faults))


HANDLERS: Any = dict.fromkeys(
    (RequestValidationError, HTTPException, UserError, Exception), _as_line
)


class KnownHost(TrustedHostMiddleware):
    """Starlette's check of the Host header, for all paths but PROBES."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] in PROBES:
            await self.app(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)


class Meter:
    """Middleware that counts requests, asks for the token, and sends errors as JSON.

    Args:
        token: bearer token that is required, if any.
        registry: gets the metrics requests and request_seconds.
    """

    def __init__(self, app: ASGIApp, token: str | None, registry: CollectorRegistry) -> None:
        self.app = app
        self.token = token
        self.requests = Counter(
            "requests", "Requests by path and status", ["path", "status"], registry=registry
        )
        self.seconds = Histogram(
            "request_seconds",
            "From a request's headers to its answer's last byte",
            ["path"],
            buckets=_DURATIONS,
            registry=registry,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"] if scope["path"] in PATHS else "other"
        status = 0  # no response yet
        plain = False

        async def send_json(message: Message) -> None:
            nonlocal status, plain
            if message["type"] == "http.response.start":
                status = message["status"]
                content_type = Headers(raw=message["headers"]).get("content-type", "")
                plain = status >= 400 and content_type.startswith("text/plain")
            if not plain:
                await send(message)
            elif message["type"] == "http.response.body":
                await error_response(status, message["body"].decode())(scope, receive, send)

        try:
            with self.seconds.labels(path).time():
                refusal = self._ask_for_token(scope)
                await (refusal or self.app)(scope, receive, send_json)
        except asyncio.CancelledError:  # uvicorn cancels what is not answered at its end
            if not status:
                await error_response(503, "the server is stopping")(scope, receive, send_json)
        finally:
            self.requests.labels(path, status or "none").inc()

    def _ask_for_token(self, scope: Scope) -> JSONResponse | None:
        """Return 401 if the token is missing or wrong, else None."""
        if self.token is None or scope["path"] in OPEN:
            return None
        scheme, _, token = Headers(scope=scope).get("authorization", "").partition(" ")
        correct = hmac.compare_digest(self.token.encode(), token.encode("latin-1"))
        if scheme.lower() == "bearer" and correct:
            return None
        text = "the token is missing or wrong: Authorization: Bearer TOKEN"
        return error_response(401, text, {"WWW-Authenticate": "Bearer"})


class Clients:
    """Middleware that bounds what clients hold that do not send or do not read: PATIENCE seconds,
    and CONNECTIONS and BODIES of all together.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        # By client: when its connection began to wait for it; infinity if it waits for an answer.
        self.since: dict[tuple[str, int], float] = {}
        self.body_bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        client = scope["client"]
        size = 0
        received = scope["method"] != "POST"  # in full
        self.since[client] = time.monotonic()

        async def receive_noted() -> Message:
            nonlocal size, received
            message = await receive()
            size += len(message.get("body", b""))
            self.body_bytes += len(message.get("body", b""))
            if self.body_bytes > BODIES:
                problem = "too much at once; ask again soon"
                raise HTTPException(503, problem, headers={"Retry-After": "1"})
            if not message.get("more_body"):
                received = True
                self.since[client] = math.inf
            return message

        async def send_noted(message: Message) -> None:
            if message["type"] == "http.response.start":
                # Requests sent ahead cost time: they are dropped, but for those behind an answer.
                # A client that is still sending would not see the response.
                answered = scope["method"] == "POST" and message["status"] == 200
                if received and not answered:
                    message["headers"] = [*message["headers"], (b"connection", b"close")]
            self.since[client] = time.monotonic()
            await send(message)

        try:
            await self.app(scope, receive_noted, send_noted)
        finally:
            self.since[client] = time.monotonic()
            self.body_bytes -= size

    def close_late(self, connections: Iterable[Any]) -> None:
        """Close what has waited for its client longer than PATIENCE, and what has waited longest
        beyond CONNECTIONS. Called every second.
        """
        now = time.monotonic()
        # A connection that is new to this table has waited since now.
        by_client = {connection.client: connection for connection in connections}
        self.since = {client: self.since.get(client, now) for client in by_client}

        # Those that have waited longest come first, and go first.
        oldest_first = sorted(by_client, key=lambda client: self.since[client])
        surplus = len(by_client) - CONNECTIONS
        for position, client in enumerate(oldest_first):
            seconds = now - self.since[client]
            if seconds > PATIENCE or (seconds > 0 and position < surplus):
                by_client[client].transport.abort()


def served_names(host: str, names: Sequence[str]) -> frozenset[str]:
    """Return the Host headers, without ports, that a server answers to, in lower case.

    They are loopback's names, its own and `names`; of a server on all addresses also the machine's
    addresses, and its host name.

    Args:
        host: name or address that it listens on.
        names: other names by which clients call it, such as *.example.com.

    Raises:
        UserError: a pattern is not all of a domain.
    """
    for name in names:
        if "*" in name.removeprefix("*."):
            cure = "give one, or *.example.com"
            raise UserError("no name", key=f"--host-name {name}", cure=cure)
    own = [host]
    if host in ANYWHERE:
        addresses = itertools.chain.from_iterable(psutil.net_if_addrs().values())
        families = socket.AF_INET, socket.AF_INET6
        for address in addresses:
            if address.family in families:
                # A link-local IPv6 address has its interface behind a %, which no Host header has.
                ip, _, _ = address.address.partition("%")
                own.append(ip)
        own += [socket.gethostname(), socket.getfqdn()]
    own = [f"[{name}]" if ":" in name else name for name in own]
    return LOOPBACK | {name.lower() for name in (*own, *names)}


def describe_access(host: str, names: frozenset[str], token: str | None) -> str:
    """Return who may ask a server on `host`, by `served_names`."""
    if {host, f"[{host}]"} & LOOPBACK:
        who = "programs on this machine"
    else:
        others = names - LOOPBACK - {"0.0.0.0", "[::]"}
        who = f"whoever reaches it as {', '.join(sorted(others))}"
    return f"{who} may ask, {'with the token' if token else 'without a token'}"


def read_token(token: str | None, file: Path | None) -> str | None:
    """Return the token in `file`, else `token`, else that of the environment (ALBERT_TOKEN).

    Raises:
        UserError: the file cannot be read, or the token is empty.
    """

    def not_read(error: Exception) -> UserError:
        problem = f"cannot read it ({first_line(error)})"
        return UserError(problem, key=f"--token-file {file}", cure="give a text file")

    # ps shows flags to other users of the machine: a file or the environment hides the token.
    if token is None:
        token = os.environ.get("ALBERT_TOKEN")
    if file is not None:
        with as_user_error(not_read):
            token = file.read_text(encoding="utf-8").strip()
    if token == "":
        cure = "give a token by --token-file, ALBERT_TOKEN or --token"
        raise UserError("empty", key="--token", cure=cure)
    return token


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket.

    Raises:
        UserError: the address is not available.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        reason, _, _ = first_line(error).partition(" (while")  # Python adds the address
        problem = f"{host} port {port}: {reason}"
        raise UserError(problem, key="--serve", cure="give another --host or --port") from None
    # asyncio leaves it out for a socket that names no protocol: replies would wait 40 ms.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # What a connection holds in the system; it would grow to megabytes for a client without haste.
    for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        listener.setsockopt(socket.SOL_SOCKET, option, _BUFFER)
    # A burst of connections needs a file each; most systems start a process with 1,024.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = max(soft, min(hard, 2 * _BURST))
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    return listener


def make_server(app: ASGIApp) -> uvicorn.Server:
    """Return a server that ends when its `should_exit` is set; requests then get 2 s."""
    clients = Clients(app)

    async def close_late() -> None:
        clients.close_late(server.server_state.connections)

    config = uvicorn.Config(
        clients,
        http="h11",
        ws="none",
        lifespan="off",  # the application has none
        log_config=None,  # its errors are lines of this program's log
        log_level="error",
        proxy_headers=False,  # a client's address is its connection's
        limit_concurrency=_BURST,
        h11_max_incomplete_event_size=HEAD,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=2,
        callback_notify=close_late,
        timeout_notify=0,  # every second
    )
    server = uvicorn.Server(config)
    return server
