"""HTTP for the server: errors as one line, limits from a connection's first byte on, and access.

A foreign web page can point its own name at this machine (DNS rebinding) and so reach a server that
trusts its network; its requests then carry that name. So a request must name a host that is served,
and have the token if there is one.
"""

import asyncio
import hmac
import json
import logging
import os
import re
import socket
import time
from collections.abc import Iterable, Mapping, MutableMapping
from http import HTTPStatus
from pathlib import Path
from typing import Any

import psutil
import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.security import HTTPBearer
from prometheus_client import CollectorRegistry, Counter, Histogram
from starlette.exceptions import HTTPException
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from detalbert.errors import UserError, as_user_error, first_line

# Limits of a request, and of all requests together:
HEAD = 1 << 16  # bytes of headers, trailers and chunk sizes
BODY = 1 << 20  # bytes
CONTEXT = 200_000  # characters
WAITING = 64  # questions behind those that the model works on
SECONDS = 30.0  # for the request to arrive, and again for its answer
CONNECTIONS = 500  # half of the files that most systems let a process open

LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
ANYWHERE = ("0.0.0.0", "::")  # hosts to serve on that are all addresses of this machine
OPEN = ("/", "/health")  # asked for without the token: the page holds nothing, and asks for it
PROBES = ("/health", "/metrics")  # for load balancers and monitors, by any name
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_find_token = HTTPBearer(auto_error=False)


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's protocol with the limits HEAD, SECONDS and CONNECTIONS."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.since = time.monotonic()  # the last time that a request began or ended
        self.head = 0  # bytes of the current request that are not its body's

    @property
    def busy(self) -> bool:
        """Whether a request has arrived in full and is not answered yet."""
        return bool(self.cycle) and not (self.cycle.more_body or self.cycle.response_complete)

    def connection_made(self, transport: Any) -> None:
        """Close the connection that has waited longest for a request if there are too many."""
        super().connection_made(transport)
        if len(self.connections) > CONNECTIONS:
            connections: Any = self.connections  # of this class
            idle = [each for each in connections if not each.busy]  # with this one
            oldest = min(idle, key=lambda each: each.since)
            oldest.transport.abort()
            connections.discard(oldest)

    def data_received(self, data: bytes) -> None:
        self.head += len(data)
        super().data_received(data)
        if self.head > HEAD:
            self.refuse(431, f"at most {HEAD:,} bytes of headers are read")

    def on_body(self, body: bytes) -> None:
        self.head -= len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self.head, self.since = 0, time.monotonic()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self.since = time.monotonic()
        super().on_response_complete()

    def end_if_late(self) -> None:
        if not self.busy and time.monotonic() > self.since + SECONDS:
            self.refuse(408, "the request did not arrive in time")

    def refuse(self, status: int, text: str) -> None:
        """Send a response of one line and close the connection."""
        if self.transport.is_closing():  # the client does not read
            self.transport.abort()
            return
        body = json.dumps({"error": text})
        lines = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", "Content-Type: application/json"
        head = "\r\n".join([*lines, f"Content-Length: {len(body)}", "Connection: close"])
        self.transport.write(f"{head}\r\n\r\n{body}".encode())
        self.transport.close()


def problem(status: int, text: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": text}, status, headers)


async def _as_line(request: Request, error: Any) -> JSONResponse:
    if isinstance(error, RequestValidationError):
        faults = (f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors())
        return problem(422, "; ".join(faults))
    if isinstance(error, HTTPException):
        return problem(error.status_code, str(error.detail), error.headers)
    return problem(500, "the model failed on this request; the server's log says how")


# Every error as one line of JSON.
HANDLERS: Any = dict.fromkeys((RequestValidationError, HTTPException, Exception), _as_line)


def served_names(host: str, names: Iterable[str]) -> frozenset[str]:
    """Return the Host headers of a server on `host`: loopback's names, its own and `names`; of one
    on all addresses also the machine's, and its host name.
    """
    own = [host]
    if host in ANYWHERE:
        addresses = [each for card in psutil.net_if_addrs().values() for each in card]
        families = socket.AF_INET, socket.AF_INET6
        # A link-local IPv6 address has its interface behind a %, which no Host header has.
        own += [each.address.split("%")[0] for each in addresses if each.family in families]
        own += [socket.gethostname(), socket.getfqdn()]
    own = [f"[{name}]" if ":" in name else name for name in own]
    return LOOPBACK | {name.lower() for name in (*own, *names)}


def describe_access(host: str, names: frozenset[str], token: str | None) -> str:
    """Return who may ask a server on `host`, by `served_names`."""
    who = f"whoever reaches it as {', '.join(sorted(names - LOOPBACK - {'0.0.0.0', '[::]'}))}"
    if {host, f"[{host}]"} & LOOPBACK:
        who = "programs on this machine"
    return f"{who} may ask, {'with the token' if token else 'without a token'}"


def read_token(token: str | None, file: Path | None) -> str | None:
    """Return the token in `file`, else `token`, else that of the environment (ALBERT_TOKEN). Raises
    UserError if the file cannot be read, or the token is empty.
    """
    found = os.environ.get("ALBERT_TOKEN") if token is None else token
    if file is not None:
        said = f"--token-file {file}: cannot read it"
        with as_user_error(lambda e: UserError(f"{said} ({first_line(e)}); give a text file")):
            found = file.read_text(encoding="utf-8").strip()
    if found == "":
        raise UserError("--token: empty; give a token by --token-file, ALBERT_TOKEN or --token")
    return found


class Guard:
    """Middleware that counts requests, refuses those without access, and bounds bodies.

    Args:
        names: Host headers without ports that are served, in lower case.
        token: bearer token that is required, if any.
        registry: gets the metrics requests and request_seconds.
    """

    def __init__(
        self, app: Any, names: frozenset[str], token: str | None, registry: CollectorRegistry
    ) -> None:
        self.app, self.names, self.token = app, names, token
        kept: dict[str, Any] = {"registry": registry}
        labels = ["path", "status"]
        self.requests = Counter("requests", "Requests by path and status", labels, **kept)
        said = "From a request's headers to its answer's last byte"
        self.seconds = Histogram("request_seconds", said, ["path"], buckets=_SECONDS, **kept)

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        status, size = "none", 0

        async def receive_bounded() -> dict[str, Any]:
            """Receive; bytes are counted, as Content-Length may be missing or wrong."""
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size <= BODY:
                return message
            # Most clients read a response only after sending, so some of the rest is dropped first.
            while message.get("more_body") and size <= 32 * BODY:
                message = await receive()
                size += len(message.get("body", b""))
            raise HTTPException(413, f"at most {BODY:,} bytes are read; cut the text")

        async def send_counted(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = str(message["status"])
            await send(message)

        known = {route.path for route in scope["app"].routes}
        path = scope["path"] if scope["path"] in known else "other"
        try:
            with self.seconds.labels(path).time():
                refusal = await self._refuse(Request(scope))
                await (refusal or self.app)(scope, receive_bounded, send_counted)
        finally:
            self.requests.labels(path, status).inc()

    async def _refuse(self, request: Request) -> JSONResponse | None:
        """Return 421 for another Host, 401 without the token, else None."""
        hosts = request.headers.getlist("host")
        name = re.sub(r":\d+$", "", hosts[0].strip().lower()) if len(hosts) == 1 else ""
        if name not in self.names and request.url.path not in PROBES:
            return problem(421, f"not served under {name[:80]!r}; see --host-name")
        if self.token is None or request.url.path in OPEN:
            return None
        given = await _find_token(request)
        if given and hmac.compare_digest(self.token.encode(), given.credentials.encode("latin-1")):
            return None
        said = "the token is missing or wrong: Authorization: Bearer TOKEN"
        return problem(401, said, {"WWW-Authenticate": "Bearer"})


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises UserError if the address is not available."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=1024)
        # asyncio leaves it out for a socket that names no protocol: replies would wait 40 ms.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
    except (OSError, OverflowError) as error:
        reason = first_line(error).split(" (while")[0]  # Python adds the address
        said = f"--serve: {host} port {port}: {reason}; give another --host or --port"
        raise UserError(said) from None


def make_server(app: FastAPI) -> uvicorn.Server:
    """Return a server that ends when its `should_exit` is set; requests then get 3 s."""

    async def end_late() -> None:
        connections: Any = server.server_state.connections
        for connection in list(connections):
            connection.end_if_late()

    server = uvicorn.Server(
        uvicorn.Config(
            app,
            http=BoundedProtocol,
            ws="none",
            lifespan="off",  # the app has none; a second Ctrl-C would print its traceback
            log_level="warning",
            timeout_keep_alive=5,
            timeout_graceful_shutdown=3,
            callback_notify=end_late,
            timeout_notify=0,  # every second
        )
    )
    cancelled = asyncio.CancelledError  # of requests, which uvicorn cancels at exit
    logging.getLogger("uvicorn.error").addFilter(
        lambda record: not (record.exc_info and isinstance(record.exc_info[1], cancelled))
    )
    return server
