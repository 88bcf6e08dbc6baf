"""A page and a JSON endpoint to ask a trained model: `python predict.py --serve`.

One thread runs the model, behind a bounded queue. What is too much is refused at once and clearly:
a body over the limit (413), a full queue (503), a wait over the limit (504).
"""

import asyncio
import contextlib
import socket
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass
from pathlib import Path
from queue import Full, Queue
from threading import Thread
from typing import Any

from detalbert.errors import UserError, first_line
from detalbert.inference.answering import Stopped
from detalbert.inference.model import Trained
from detalbert.inference.reply import ask
from detalbert.squad.question_stream import check_text

try:
    import uvicorn
    from fastapi import FastAPI, Request
    from fastapi.exceptions import RequestValidationError
    from fastapi.responses import HTMLResponse, JSONResponse
    from pydantic import BaseModel, Field
    from starlette.exceptions import HTTPException
except ImportError as missing:
    raise UserError(
        f"--serve: {missing.name} is not installed; pip install -r requirements-serve.txt"
    ) from None

PAGE = Path(__file__).with_name("page.html")


@dataclass(frozen=True)
class Limits:
    """What one request, and all of them together, may take."""

    body: int = 1 << 20  # bytes
    context: int = 200_000  # characters
    waiting: int = 64  # requests behind the one that the model works on
    seconds: float = 30.0  # for the request to arrive, and again for its answer


LIMITS = Limits()
# The page is one file: it takes nothing from elsewhere and talks to this server alone.
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; "
    "connect-src 'self'"
)


class Ask(BaseModel):
    """A question and the text that may hold its answer."""

    question: str = Field(examples=["Who wrote it?"])
    context: str = Field(examples=["The book is by Ada."])


class Choice(BaseModel):
    """One possible answer; the empty text is "no answer"."""

    text: str
    probability: float = Field(description="among all that are listed")
    start: int = Field(description="its first character in the context (Unicode code points)")
    end: int = Field(description="the character after its last")


class Reply(BaseModel):
    """What the model says."""

    question: str
    answer: str = Field(description="empty where the model abstains")
    abstained: bool
    start: int | None
    end: int | None
    probability: float = Field(description='of the answer, or of "no answer"')
    margin: float | None = Field(
        description='score of the best span less score of "no answer"; null without any span'
    )
    threshold: float = Field(description="the model abstains where -margin is above it")
    n_best: list[Choice] = Field(description="best first")


class Worker:
    """The thread that runs the model, one question at a time."""

    def __init__(self, trained: Trained, threshold: float, waiting: int) -> None:
        self.trained = trained
        self.threshold = threshold
        self.queue: Queue = Queue(waiting)
        self.thread = Thread(target=self._work, daemon=True)
        self.thread.start()

    def submit(self, question: str, context: str, deadline: float) -> "Future[dict[str, Any]]":
        """The reply to come; past `deadline` (time.monotonic) nobody waits for it. Raises Full."""
        future: Future = Future()
        self.queue.put_nowait((future, question, context, deadline))
        return future

    def _work(self) -> None:
        while True:
            future, question, context, deadline = self.queue.get()

            def wanted(future: Future = future, deadline: float = deadline) -> bool:
                return not future.cancelled() and time.monotonic() < deadline

            with contextlib.suppress(InvalidStateError):  # nobody waits for it any more
                try:
                    if not wanted():
                        raise Stopped
                    reply = ask(self.trained, question, context, self.threshold, wanted)
                except BaseException as error:  # the thread outlives whatever one question does
                    future.set_exception(error)
                else:
                    future.set_result(reply)


class BoundedBody:
    """Reads a request's body before the application does: at most so many bytes, in limited time.

    Content-Length may be missing or wrong, so bytes are counted as they come.
    """

    def __init__(self, app: Any, limits: Limits) -> None:
        self.app = app
        self.limits = limits

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        try:
            body = await asyncio.wait_for(self._read(receive), self.limits.seconds)
        except asyncio.TimeoutError:
            await _problem(408, "the request did not arrive in time")(scope, receive, send)
            return
        if body is None:
            await _problem(413, f"at most {self.limits.body:,} bytes are read; cut the context")(
                scope, receive, send
            )
            return
        messages = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> dict[str, Any]:
            return messages.pop() if messages else await receive()

        await self.app(scope, replay, send)

    async def _read(self, receive: Callable[[], Awaitable[dict[str, Any]]]) -> bytes | None:
        """The whole body; None where it is too long.

        Some of what is too long is read and dropped: most clients look at the answer only when
        they have sent all.
        """
        body, size = b"", 0
        while True:
            message = await receive()
            size += len(message.get("body", b""))
            body = body + message.get("body", b"") if size <= self.limits.body else b""
            if not message.get("more_body") or size > 32 * self.limits.body:
                return body if size <= self.limits.body else None


def _problem(status: int, text: str, **headers: str) -> JSONResponse:
    return JSONResponse({"error": text}, status, headers)


def make_app(trained: Trained, threshold: float, limits: Limits = LIMITS) -> FastAPI:
    """The application: `/`, the page; `/answer`; `/openapi.json`, which documents it."""
    app = FastAPI(title="Questions and answers", version="1", description=__doc__)
    worker = Worker(trained, threshold, limits.waiting)
    page = PAGE.read_text(encoding="utf-8")
    _handle_errors(app)
    problem = {"description": "one line, under `error`"}

    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def show_page() -> HTMLResponse:
        return HTMLResponse(page, headers={"Content-Security-Policy": POLICY})

    @app.post(
        "/answer",
        response_model=Reply,
        responses=dict.fromkeys((400, 408, 413, 422, 503, 504), problem),
    )
    async def answer(asked: Ask) -> Any:
        """Find the answer to a question in a text, or say that the text has none."""
        question = asked.question.strip()
        try:
            check_text("request", question, asked.context, limits.context)
            future = worker.submit(question, asked.context, time.monotonic() + limits.seconds)
            return await asyncio.wait_for(asyncio.wrap_future(future), limits.seconds)
        except UserError as error:
            return _problem(422, str(error))
        except Full:
            again = {"Retry-After": "1"}
            return _problem(503, "too many questions at once; ask again soon", **again)
        except (asyncio.TimeoutError, Stopped):
            return _problem(504, f"no answer within {limits.seconds:g} s; give a shorter context")

    app.add_middleware(BoundedBody, limits=limits)
    return app


def _handle_errors(app: FastAPI) -> None:
    """Every error as one line of JSON."""

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        faults = [(".".join(map(str, fault["loc"])), fault["msg"]) for fault in error.errors()]
        return _problem(422, "; ".join(f"{where}: {what}" for where, what in faults))

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> JSONResponse:
        return _problem(error.status_code, str(error.detail), **(error.headers or {}))

    @app.exception_handler(Exception)
    async def broken(request: Request, error: Exception) -> JSONResponse:
        return _problem(500, "the model failed on this question; the server's log says how")


def serve(trained: Trained, threshold: float, host: str, port: int) -> None:
    """Serve until interrupted. Raises UserError for an address that the system does not give."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=1024)
    except (OSError, OverflowError) as error:
        reason = first_line(error).split(" (while")[0]  # Python adds the address
        raise UserError(
            f"--serve: {host} port {port}: {reason}; give another --host or --port"
        ) from None
    shown = f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{listener.getsockname()[1]}"
    print(f"serving on {address} (the endpoint: /openapi.json); Ctrl-C ends it", flush=True)
    timeouts = {"timeout_keep_alive": 5, "timeout_graceful_shutdown": 3}
    config = uvicorn.Config(make_app(trained, threshold), log_level="warning", **timeouts)
    with contextlib.suppress(KeyboardInterrupt):  # uvicorn raises the signal again after its end
        uvicorn.Server(config).run(sockets=[listener])
    print("stopped")
