"""HTTP server helpers: one page, bounded requests, errors as one line."""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from starlette.exceptions import HTTPException

from detalbert.errors import UserError, first_line

# The page is one file: it takes nothing from elsewhere and talks to this server alone.
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; "
    "connect-src 'self'"
)
PROBLEM = {"description": "one line, under `error`"}  # of an endpoint, for its description


def show_page(app: FastAPI, page: Path) -> None:
    """Serve the file `page` at `/`."""
    content = page.read_text(encoding="utf-8")

    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def show() -> HTMLResponse:
        return HTMLResponse(content, headers={"Content-Security-Policy": POLICY})


class BoundedBody:
    """Middleware that reads a request's body first: at most `body` bytes, within `seconds`.

    Content-Length may be missing or wrong, so bytes are counted as they arrive.
    """

    def __init__(self, app: Any, body: int, seconds: float) -> None:
        self.app, self.body, self.seconds = app, body, seconds

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        try:
            body = await asyncio.wait_for(self._read(receive), self.seconds)
        except asyncio.TimeoutError:
            await problem(408, "the request did not arrive in time")(scope, receive, send)
            return
        if body is None:
            too_much = problem(413, f"at most {self.body:,} bytes are read; cut the text")
            await too_much(scope, receive, send)
            return
        messages = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> dict[str, Any]:
            return messages.pop() if messages else await receive()

        await self.app(scope, replay, send)

    async def _read(self, receive: Callable[[], Awaitable[dict[str, Any]]]) -> bytes | None:
        """Return the whole body, or None if it is too long.

        Some of an overlong body is read and dropped: most clients read a response only after
        sending.
        """
        body, size = b"", 0
        while True:
            message = await receive()
            size += len(message.get("body", b""))
            body = body + message.get("body", b"") if size <= self.body else b""
            if not message.get("more_body") or size > 32 * self.body:
                return body if size <= self.body else None


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


def run(app: FastAPI, listener: socket.socket, token: bool, stopped: Connection) -> None:
    """Serve until the other end of `stopped`, on which nothing is sent, closes; requests then get 3
    s.

    `token` tells whether clients need one.
    """
    host, port = listener.getsockname()[:2]
    address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    here = token or host in ("127.0.0.1", "::1")
    word = "" if here else "; without --token whoever reaches it may ask"
    print(f"serving on {address} (the endpoint: /openapi.json); Ctrl-C ends it{word}", flush=True)
    timeouts: dict[str, Any] = {"timeout_keep_alive": 5, "timeout_graceful_shutdown": 3}
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", **timeouts))
    logging.getLogger("uvicorn.error").addFilter(_is_no_cancelled_request)

    def end() -> None:
        stopped.poll(None)
        server.should_exit = True

    Thread(target=end, daemon=True).start()
    server.run(sockets=[listener])
    print("stopped")


def _is_no_cancelled_request(record: logging.LogRecord) -> bool:
    """Return whether to log `record`: not tracebacks of requests that uvicorn cancels at exit."""
    return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))
