"""Page and JSON endpoint for questions to a trained model: `python predict.py --serve`.

A thread for each core takes its share of what waits and answers it together, in packed rows; what
arrives meanwhile is the next share. Threads that share a row wait for each other after
every kernel: with one row after another on all cores, 32 clients got a fifth fewer answers. So only
a row that finds the model idle is computed by all cores.

Each response ends its connection, so that requests sent ahead cost nothing. For slow clients, TLS
and limits per address a proxy stands in front.
"""

import asyncio
import hmac
import math
import os
import signal
import socket
import threading
from collections import deque
from concurrent.futures import Future
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, exposition
from pydantic import BaseModel, Field
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware.body_limit import RequestBodyLimitMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from detalbert.errors import UserError, first_line
from detalbert.inference.model import Trained
from detalbert.inference.reply import MAX_QUESTION, Reply, ask_together, check_text

CONTEXT = 200_000  # characters
BODY = 12 * (CONTEXT + MAX_QUESTION) + 1000  # bytes: JSON may write a character as two \uXXXX
WAITING = 64  # questions behind those that the model works on
TOGETHER = 16  # questions that are answered at a time; what is more than a row gets a second one
SECONDS = 30.0  # for an answer
CONNECTIONS = 1000
PATHS = ("/", "/answer", "/answers", "/health", "/metrics", "/openapi.json")
OPEN = ("/", "/health")  # need no token: the page holds nothing, and asks for it
TOKEN_NEEDED = "the token is missing or wrong: Authorization: Bearer TOKEN"
BEARER = {"WWW-Authenticate": "Bearer"}
LOOPBACK = ("localhost", "127.0.0.1", "::1", "[::1]")
# The page is one file: it takes nothing from elsewhere and talks to this server alone.
PAGE = Path(__file__).with_name("page.html")
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; "
    "connect-src 'self'"
)


class Waiting(NamedTuple):
    """A question, its name in errors, and its reply to be."""

    name: str
    question: str
    context: str
    reply: Future[Reply]


class Batcher:
    """Queue of questions, and the threads that answer them."""

    def __init__(self, trained: Trained, threshold: float) -> None:
        self.trained = trained
        self.threshold = threshold
        # On a CPU each core computes a row of its own; a GPU does one row after another.
        self.cores = torch.get_num_threads()
        self.slots = self.cores if trained.forward.device.type == "cpu" else 1
        self.idle = self.slots
        self.queue: deque[Waiting] = deque()
        self.changed = threading.Condition()  # holds queue and idle
        for _ in range(self.slots):  # daemons: the process ends without waiting for a row
            threading.Thread(target=self._answer_all, daemon=True).start()

    def submit(self, jobs: list[Waiting]) -> None:
        """Queue all of `jobs`; raise HTTPException, with none queued, if they exceed the limit."""
        with self.changed:
            if len(self.queue) + len(jobs) > WAITING:
                problem = "too many questions at once; ask again soon"
                raise HTTPException(503, problem, headers={"Retry-After": "1"})
            self.queue.extend(jobs)
            self.changed.notify(len(jobs))

    def _answer_all(self) -> None:
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self.queue)
                jobs = self._take()
                self.idle -= 1
            # Nobody waits any more for those that are cancelled.
            self._answer([job for job in jobs if job.reply.set_running_or_notify_cancel()])
            with self.changed:
                self.idle += 1

    def _take(self) -> list[Waiting]:
        """Return this thread's share of the queue."""
        # A few questions that find the model idle are one row, computed by all cores.
        is_alone = self.idle == self.slots and len(self.queue) < 2 * self.slots
        torch.set_num_threads(self.cores if is_alone else 1)  # of this thread
        share = math.ceil(len(self.queue) / (1 if is_alone else self.idle))
        return [self.queue.popleft() for _ in range(min(share, TOGETHER))]

    def _answer(self, jobs: list[Waiting]) -> None:
        questions = [(job.question, job.context) for job in jobs]
        try:
            replies = ask_together(self.trained, questions, self.threshold) if jobs else []
        except Exception as error:
            # A row fails as a whole: each question is tried alone, to find the one at fault.
            if len(jobs) > 1:
                for job in jobs:
                    self._answer([job])
                return
            if isinstance(error, UserError):
                error = error.under(jobs[0].name)
            jobs[0].reply.set_exception(error)
            return
        for job, reply in zip(jobs, replies, strict=True):
            job.reply.set_result(reply)


class Ask(BaseModel):
    """A question and the text that may hold its answer."""

    question: str = Field(examples=["Who wrote it?"])
    context: str = Field(examples=["The book is by Ada."])


async def respond(batcher: Batcher, questions: dict[str, Ask]) -> list[Reply]:
    """Return the replies to questions, in their order.

    Args:
        questions: by their names in errors.

    Raises:
        UserError: a question cannot be answered.
        HTTPException: there are too many, or none is answered in time.
    """
    # All are checked before one is queued.
    jobs = []
    for name, ask in questions.items():
        job = Waiting(name, ask.question.strip(), ask.context, Future())
        check_text(name, job.question, job.context, CONTEXT)
        jobs.append(job)
    batcher.submit(jobs)
    replies = asyncio.gather(*(asyncio.wrap_future(job.reply) for job in jobs))
    try:
        return await asyncio.wait_for(replies, SECONDS)
    except asyncio.TimeoutError:
        problem = f"no answer within {SECONDS:g} s; give a shorter context"
        raise HTTPException(504, problem) from None


def make_app(
    trained: Trained, threshold: float, token: str | None = None, loopback: bool = True
) -> FastAPI:
    """Create the application: the page, and what `/openapi.json` lists.

    Args:
        token: bearer token that is required, if any.
        loopback: whether it is for this machine only: then a Host header of another name is
            refused, as a foreign web page can point its own name at this machine.
    """
    batcher = Batcher(trained, threshold)
    app = FastAPI(
        title="Questions and answers",
        docs_url=None,  # its scripts, and those of redoc, are from elsewhere
        redoc_url=None,
        exception_handlers=dict.fromkeys(
            (RequestValidationError, HTTPException, UserError, Exception), _as_line
        ),
    )

    @app.post("/answer")
    async def answer(question: Ask) -> Reply:
        """Find the answer to a question in a text, or say that the text has none."""
        replies = await respond(batcher, {"request": question})
        return replies[0]

    @app.post("/answers")
    async def answer_list(questions: Annotated[list[Ask], Field(min_length=1)]) -> list[Reply]:
        """Answer a list of questions, in order: all of them, or none."""
        named = {f"question {number}": ask for number, ask in enumerate(questions)}
        return await respond(batcher, named)

    @app.get("/health")
    async def health() -> dict[str, Any]:
        """Return 200 as long as requests are answered, with the model and its limits."""
        kind = trained.model.config.model_type
        shown = ("exact", "f1", "total")
        return {
            "status": "ok",
            "model": kind,
            "name": trained.name,
            "base": Path(trained.hparams.model or kind).name,
            "scores": {name: trained.scores[name] for name in shown if name in trained.scores},
            "max_question": MAX_QUESTION,
            "max_context": CONTEXT,
        }

    @app.get("/", include_in_schema=False)
    async def page() -> HTMLResponse:
        return HTMLResponse(PAGE.read_bytes(), headers={"Content-Security-Policy": POLICY})

    registry = CollectorRegistry()
    waiting = Gauge("waiting", "Questions that wait for the model", registry=registry)
    waiting.set_function(lambda: len(batcher.queue))

    @app.get("/metrics")
    async def metrics() -> Response:
        """Return the metrics in Prometheus' text format."""
        text = exposition.generate_latest(registry)
        return Response(text, media_type=exposition.CONTENT_TYPE_LATEST)

    # A middleware is around those added before it.
    app.add_middleware(RequestBodyLimitMiddleware, max_body_size=BODY)
    app.add_middleware(Guard, token=token, registry=registry)
    if loopback:
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=LOOPBACK, www_redirect=False)
    return app


class Guard:
    """Middleware that counts requests, and asks for the token before it reads their bodies.

    Args:
        registry: gets the metrics requests and request_seconds.
    """

    def __init__(self, app: ASGIApp, token: str | None, registry: CollectorRegistry) -> None:
        self.app = app
        self.token = token
        self.requests = Counter(
            "requests", "By path and status", ["path", "status"], registry=registry
        )
        self.seconds = Histogram(
            "request_seconds", "From a request to its answer", registry=registry
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        status = 0  # no response yet

        async def send_noted(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            with self.seconds.time():
                app = self.app if self._may_ask(scope) else _error(401, TOKEN_NEEDED, BEARER)
                await app(scope, receive, send_noted)
        except asyncio.CancelledError:  # uvicorn cancels what is not answered at its end
            if not status:
                await _error(503, "the server is stopping")(scope, receive, send_noted)
        finally:
            path = scope["path"] if scope["path"] in PATHS else "other"
            self.requests.labels(path, status or "none").inc()

    def _may_ask(self, scope: Scope) -> bool:
        if self.token is None or scope["path"] in OPEN:
            return True
        scheme, _, sent = Headers(scope=scope).get("authorization", "").partition(" ")
        # Compared in a time that does not tell where they differ.
        is_same = hmac.compare_digest(sent.encode(), self.token.encode())
        return scheme.lower() == "bearer" and is_same


def _error(status: int, text: str, headers: Any = None) -> JSONResponse:
    return JSONResponse({"error": text}, status, headers)


async def _as_line(request: Request, error: Exception) -> JSONResponse:
    """Return the response for an error that ended a request: one line of JSON."""
    status, headers = 500, None
    problem = "the model failed on this request; the server's log says how"
    if isinstance(error, HTTPException):
        status, headers, problem = error.status_code, error.headers, str(error.detail)
    elif isinstance(error, UserError):
        status, problem = 422, str(error)
    elif isinstance(error, RequestValidationError):
        status, problem = 422, "send JSON, with the header Content-Type: application/json"
        if "json" in request.headers.get("content-type", ""):
            fault = error.errors()[0]
            problem = f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}"
    return _error(status, problem, headers)


def read_token(file: Path | None) -> str | None:
    """Return the token in `file`, else that of the environment (ALBERT_TOKEN).

    A flag would not do: ps shows it to other users of the machine.

    Raises:
        UserError: the file cannot be read, or the token is empty.
    """
    try:
        token = os.environ.get("ALBERT_TOKEN")
        if file is not None:
            token = file.read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read it ({first_line(error)})", key=str(file)) from None
    if token == "":
        raise UserError("empty", key="the token", cure="give one by --token-file or ALBERT_TOKEN")
    return token


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; raise UserError if the address is not available."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        problem = f"{host} port {port}: {first_line(error)}"
        raise UserError(problem, key="--serve", cure="give another --host or --port") from None
    # asyncio leaves it out for a socket that names no protocol: replies would wait 40 ms.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def make_server(app: FastAPI) -> uvicorn.Server:
    """Return a server whose requests get 2 s at its end."""
    config = uvicorn.Config(
        app,
        http="h11",  # httptools parses without bound all that a client sends ahead
        ws="none",
        lifespan="off",  # the application has none
        log_config=None,  # its errors are lines of this program's log
        log_level="error",
        proxy_headers=False,  # a client's address is its connection's
        headers=[("Connection", "close")],
        limit_concurrency=CONNECTIONS,
        h11_max_incomplete_event_size=1 << 16,  # bytes of headers
        timeout_graceful_shutdown=2,
    )
    return uvicorn.Server(config)


def serve(trained: Trained, threshold: float, host: str, port: int, token: str | None) -> None:
    """Serve until SIGINT or SIGTERM ends the process, with status 0.

    Args:
        threshold: null odds above which the model abstains.
        host: name or address to listen on.
        port: TCP port; 0: any that is free.
        token: bearer token that clients must send, if any.

    Raises:
        UserError: the address is not available.
    """
    listener = listen(host, port)
    loopback = host in LOOPBACK
    server = make_server(make_app(trained, threshold, token, loopback))
    for number in (signal.SIGINT, signal.SIGTERM):  # uvicorn raises them once more at its end
        signal.signal(number, signal.SIG_IGN)
    shown_host = f"[{host}]" if ":" in host else host  # an IPv6 address
    bound_port = listener.getsockname()[1]
    who = "programs on this machine" if loopback else "whoever reaches it"
    print(
        f"serving on http://{shown_host}:{bound_port} (the endpoint: /openapi.json): {who} may "
        f"ask, {'with the token' if token else 'without a token'}; Ctrl-C ends it",
        flush=True,
    )
    server.run(sockets=[listener])
    print("stopped", flush=True)
    os._exit(0)  # the threads may compute for long
