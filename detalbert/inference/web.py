"""HTTP server helpers: errors as one line, and limits that hold from a connection's first byte."""

import asyncio
import json
import logging
import socket
import time
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from detalbert.errors import UserError, first_line

# Limits of a request, and of all requests together:
HEAD = 1 << 16  # bytes of headers, trailers and chunk sizes
BODY = 1 << 20  # bytes
CONTEXT = 200_000  # characters
WAITING = 64  # questions behind those that the model works on
SECONDS = 30.0  # for the request to arrive, and again for its answer
CONNECTIONS = 500  # half of the files that most systems let a process open


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


async def _invalid(request: Request, error: Any) -> JSONResponse:
    faults = [(".".join(map(str, fault["loc"])), fault["msg"]) for fault in error.errors()]
    return problem(422, "; ".join(f"{where}: {what}" for where, what in faults))


async def _refused(request: Request, error: Any) -> JSONResponse:
    return problem(error.status_code, str(error.detail), error.headers)


async def _broken(request: Request, error: Exception) -> JSONResponse:
    return problem(500, "the model failed on this request; the server's log says how")


# Every error as one line of JSON.
HANDLERS: Any = {RequestValidationError: _invalid, HTTPException: _refused, Exception: _broken}


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
    logging.getLogger("uvicorn.error").addFilter(_is_no_cancelled_request)
    return server


def _is_no_cancelled_request(record: logging.LogRecord) -> bool:
    """Return whether to log `record`: not tracebacks of requests that uvicorn cancels at exit."""
    return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))
