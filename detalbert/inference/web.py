"""HTTP server helpers: errors as one line, and limits that hold from a connection's first byte."""

import asyncio
import json
import logging
import socket
import time
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from detalbert.errors import UserError, first_line


@dataclass(frozen=True)
class Limits:
    """Limits of one request, and of all requests together."""

    head: int = 1 << 16  # bytes of headers, trailers and chunk sizes
    body: int = 1 << 20  # bytes
    context: int = 200_000  # characters
    waiting: int = 64  # questions behind those that the model works on
    seconds: float = 30.0  # for the request to arrive, and again for its answer
    connections: int = 500  # half of the files that most systems let a process open


LIMITS = Limits()


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's protocol with `head`, `seconds` and `connections` of the limits."""

    def __init__(self, *args: Any, limits: Limits, **options: Any) -> None:
        super().__init__(*args, **options)
        self.limits = limits
        self.since = time.monotonic()  # the last time that a request began or ended
        self.head = 0  # bytes of the current request that are not its body's

    @property
    def busy(self) -> bool:
        """Whether a request has arrived in full and is not answered yet."""
        return bool(self.cycle) and not (self.cycle.more_body or self.cycle.response_complete)

    def connection_made(self, transport: Any) -> None:
        """Close the connection that has waited longest for a request if there are too many."""
        super().connection_made(transport)
        if len(self.connections) > self.limits.connections:
            connections: Any = self.connections  # of this class
            idle = [each for each in connections if not each.busy]  # with this one
            oldest = min(idle, key=lambda each: each.since)
            oldest.transport.abort()
            connections.discard(oldest)

    def data_received(self, data: bytes) -> None:
        self.head += len(data)
        super().data_received(data)
        if self.head > self.limits.head:
            self.refuse(431, f"at most {self.limits.head:,} bytes of headers are read")

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
        if not self.busy and time.monotonic() > self.since + self.limits.seconds:
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


def problem(status: int, text: str, **headers: str) -> JSONResponse:
    return JSONResponse({"error": text}, status, headers)


def handle_errors(app: FastAPI) -> None:
    """Return every error as one line of JSON."""

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        faults = [(".".join(map(str, fault["loc"])), fault["msg"]) for fault in error.errors()]
        return problem(422, "; ".join(f"{where}: {what}" for where, what in faults))

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> JSONResponse:
        return problem(error.status_code, str(error.detail), **(error.headers or {}))

    @app.exception_handler(Exception)
    async def broken(request: Request, error: Exception) -> JSONResponse:
        return problem(500, "the model failed on this request; the server's log says how")


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
        raise UserError(
            f"--serve: {host} port {port}: {reason}; give another --host or --port"
        ) from None


def make_server(app: FastAPI, limits: Limits) -> uvicorn.Server:
    """Return a server that ends when its `should_exit` is set; requests then get 3 s."""

    async def end_late() -> None:
        connections: Any = server.server_state.connections
        for connection in list(connections):
            connection.end_if_late()

    server = uvicorn.Server(
        uvicorn.Config(
            app,
            http=partial(BoundedProtocol, limits=limits),  # type: ignore[arg-type]  # it is called
            ws="none",
            log_level="warning",
            timeout_keep_alive=5,
            timeout_graceful_shutdown=3,
            callback_notify=end_late,
            timeout_notify=0,  # every second
        )
    )
    logging.getLogger("uvicorn.error").addFilter(_is_no_cancelled_request)
    return server


def _is_no_cancelled_request(record: logging.LogRecord) -> bool:
    """Return whether to log `record`: not tracebacks of requests that uvicorn cancels at exit."""
    return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))
