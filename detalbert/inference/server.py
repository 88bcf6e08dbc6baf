"""Page and JSON endpoint for questions to a trained model: `python predict.py --serve`.

Questions that wait are answered together, in packed rows: two batches at a time, each on half of
the cores, as the threads of a row wait for each other. A question alone is computed by all cores.

Each response ends its connection, so that requests sent ahead cost nothing. For slow clients, TLS
and limits per address a proxy stands in front.
"""

import asyncio
import contextlib
import hmac
import logging
import os
import signal
import socket
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from queue import Empty, Full, Queue
from threading import Thread
from typing import Any

import torch
import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response
from prometheus_client import CollectorRegistry, Gauge, Histogram, exposition
from pydantic import BaseModel, Field
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware.body_limit import RequestBodyLimitMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from detalbert.addresses import open_text
from detalbert.errors import UserError, first_line
from detalbert.inference.model import Trained
from detalbert.inference.reply import MAX_QUESTION, Reply, ask_together

CONTEXT = 200_000  # characters
BODY = 12 * (CONTEXT + MAX_QUESTION) + 1000  # bytes: JSON may write a character as two \uXXXX
WAITING = 64  # questions behind those that the model works on
THREADS = 2  # batches that are answered at a time
TOGETHER = 16  # questions of a batch; what is more than a row gets a second one
SECONDS = 30.0  # for an answer
CONNECTIONS = 1000
OPEN = ("/", "/health")  # need no token: the page holds nothing, and asks for it
LOOPBACK = ("localhost", "127.0.0.1", "::1", "[::1]")
# The page is one file: it takes nothing from elsewhere and talks to this server alone.
PAGE = Path(__file__).with_name("page.html")
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; "
    "connect-src 'self'"
)
log = logging.getLogger(__name__)


class Ask(BaseModel):
    """A question and the text that may hold its answer."""

    # The pattern: more than white space.
    question: str = Field(pattern=r"\S", max_length=MAX_QUESTION, examples=["Who wrote it?"])
    context: str = Field(pattern=r"\S", max_length=CONTEXT, examples=["The book is by Ada."])


Job = tuple[Ask, Future[Reply]]


class Batcher:
    """Queue of questions, and threads, each of which answers some that wait together."""

    def __init__(self, trained: Trained, threshold: float) -> None:
        self.trained = trained
        self.threshold = threshold
        self.cores = torch.get_num_threads()
        self.queue: Queue[Job] = Queue(WAITING)
        for _ in range(THREADS):
            Thread(target=self._work, daemon=True).start()

    async def ask(self, question: Ask) -> Reply:
        """Return the reply to a question.

        Raises:
            UserError: windows cannot cover the context.
            HTTPException: too many wait, or the answer is not there in time.
        """
        reply: Future[Reply] = Future()
        try:
            self.queue.put_nowait((question, reply))
            return await asyncio.wait_for(asyncio.wrap_future(reply), timeout=SECONDS)
        except Full:
            problem = "too many questions at once; ask again soon"
            raise HTTPException(503, problem, headers={"Retry-After": "1"}) from None
        except asyncio.TimeoutError:  # it is cancelled, and not computed
            problem = f"no answer within {SECONDS:g} s; give a shorter context"
            raise HTTPException(504, problem) from None

    def _work(self) -> None:
        """Answer what waits, at most TOGETHER at a time, without an end."""
        while True:
            jobs = [self.queue.get()]
            with contextlib.suppress(Empty):
                while len(jobs) < TOGETHER:
                    jobs.append(self.queue.get_nowait())
            batches = min(len(jobs), THREADS)  # at a time
            torch.set_num_threads(max(1, self.cores // batches))  # of this thread
            # Nobody waits any more for those that are cancelled.
            jobs = [job for job in jobs if job[1].set_running_or_notify_cancel()]
            if jobs:
                self._answer(jobs)

    def _answer(self, jobs: list[Job]) -> None:
        """Answer questions that share rows; an error is that of its question alone."""
        pairs = [(ask.question, ask.context) for ask, _ in jobs]
        try:
            replies = ask_together(self.trained, pairs, self.threshold)
            for (_, future), reply in zip(jobs, replies, strict=True):
                future.set_result(reply)
        except Exception as error:
            # A row fails as a whole: each question is tried alone, to find the one at fault.
            if len(jobs) > 1:
                for job in jobs:
                    self._answer([job])
                return
            if not isinstance(error, UserError):
                log.exception("the model failed on a question")
            jobs[0][1].set_exception(error)


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
    registry = CollectorRegistry()
    waiting = Gauge("waiting", "Questions that wait for the model", registry=registry)
    waiting.set_function(batcher.queue.qsize)
    seconds = Histogram("answer_seconds", "Time to an answer or error", registry=registry)
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
        with seconds.time():
            return await batcher.ask(question)

    @app.get("/health")
    async def health() -> dict[str, Any]:
        """Return 200 as long as requests are answered, with the model and its limits."""
        return {
            "name": Path(trained.name).resolve().name,
            "base": Path(trained.hparams.model or trained.model.config.model_type).name,
            "scores": trained.scores,
            "max_question": MAX_QUESTION,
            "max_context": CONTEXT,
        }

    @app.get("/", include_in_schema=False)
    async def page() -> HTMLResponse:
        return HTMLResponse(PAGE.read_bytes(), headers={"Content-Security-Policy": POLICY})

    @app.get("/metrics")
    async def metrics() -> Response:
        """Return the metrics in Prometheus' text format."""
        text = exposition.generate_latest(registry)
        return Response(text, media_type=exposition.CONTENT_TYPE_LATEST)

    # A middleware is around those added before it.
    app.add_middleware(RequestBodyLimitMiddleware, max_body_size=BODY)
    app.add_middleware(Guard, token=token)
    if loopback:
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=LOOPBACK, www_redirect=False)
    return app


class Guard:
    """Middleware that asks for the token before a request's body is read."""

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self.app = app
        self.token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self.app if self._may_ask(scope) else NEEDS_TOKEN
        await app(scope, receive, send)

    def _may_ask(self, scope: Scope) -> bool:
        if self.token is None or scope["path"] in OPEN:
            return True
        scheme, _, sent = Headers(scope=scope).get("authorization", "").partition(" ")
        # Compared in a time that does not tell where they differ.
        is_same = hmac.compare_digest(sent.encode(), self.token.encode())
        return scheme.lower() == "bearer" and is_same


def _error(status: int, text: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": text}, status, headers)


NEEDS_TOKEN = _error(
    401,
    "the token is missing or wrong: Authorization: Bearer TOKEN",
    headers={"WWW-Authenticate": "Bearer"},
)


async def _as_line(request: Request, error: Exception) -> JSONResponse:
    """Return the response for an error that ended a request: one line of JSON."""
    if isinstance(error, HTTPException):
        return _error(error.status_code, error.detail, error.headers)
    if isinstance(error, UserError):
        return _error(422, str(error))
    if not isinstance(error, RequestValidationError):
        return _error(500, "the model failed on this request; the server's log says how")
    fault = error.errors()[0]
    return _error(422, f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}")


def read_token(file: Path | None) -> str | None:
    """Return the token in `file`, else that of the environment (ALBERT_TOKEN), as ps shows flags to
    other users of the machine. Raises UserError if the file cannot be read, or the token is empty.
    """
    token = os.environ.get("ALBERT_TOKEN")
    if file is not None:
        with open_text(str(file)) as lines:
            token = lines.read().strip()
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
        log_level="critical",  # the application logs its own
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
