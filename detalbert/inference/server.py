"""Page and JSON endpoint for questions to a trained model: `python predict.py --serve`.

An event loop takes requests. A thread for each core takes what waits, as many questions as fill a
packed row, and answers them together; what arrives meanwhile is the next row. Threads that share a
row wait for each other after every kernel: with one row after another on all cores, 32 clients got
a fifth fewer answers. So only a row that finds the model idle is computed by all cores.
"""

import asyncio
import contextlib
import math
import os
import signal
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
from fastapi import APIRouter, FastAPI, HTTPException, Request
from fastapi.responses import HTMLResponse, Response
from prometheus_client import CollectorRegistry, Gauge, Histogram, exposition
from pydantic import BaseModel, Field, TypeAdapter
from starlette.middleware.body_limit import RequestBodyLimitMiddleware

from detalbert.errors import UserError
from detalbert.inference import web
from detalbert.inference.answering import Stopped, max_row_tokens
from detalbert.inference.model import Trained
from detalbert.inference.reply import MAX_QUESTION, Reply, ask_together, check_text
from detalbert.inference.web import LOOPBACK
from detalbert.processes import STOP_SIGNALS

# The page is one file: it takes nothing from elsewhere and talks to this server alone.
PAGE = Path(__file__).with_name("page.html")
_PAGE_BYTES = PAGE.read_bytes()  # once, however many clients do not read it
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; "
    "connect-src 'self'"
)
_CHARACTERS = 3  # of a token; what is more than a row goes into a second one
_TOKENS = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768)
_PROBLEM = {"description": "one line, under `error`"}
_RESPONSES: Any = dict.fromkeys((400, 401, 413, 422, 503, 504), _PROBLEM)


class Waiting(NamedTuple):
    """A question, its name in errors, and its reply to be, cancelled if nobody waits any more."""

    name: str
    question: str
    context: str
    reply: asyncio.Future[Reply]


class Batcher:
    """Queue of questions, and the threads that answer them.

    Args:
        registry: gets the metrics waiting and row_tokens.
    """

    def __init__(self, trained: Trained, threshold: float, registry: CollectorRegistry) -> None:
        self.trained = trained
        self.threshold = threshold
        self.row = _CHARACTERS * max_row_tokens(trained.hparams)  # characters
        # On a CPU each core computes a row of its own; a GPU does one row after another.
        self.cores = torch.get_num_threads()
        self.slots = self.cores if trained.forward.device.type == "cpu" else 1
        self.busy = 0  # slots that compute
        self.queue: deque[Waiting] = deque()
        self.changed = threading.Condition()  # holds queue and busy
        waiting = Gauge("waiting", "Requests that wait for the model", registry=registry)
        waiting.set_function(lambda: len(self.queue))
        self.row_tokens = Histogram(
            "row_tokens", "Real tokens of a packed row", buckets=_TOKENS, registry=registry
        )
        for _ in range(self.slots):  # daemons: the process ends without waiting for a row
            threading.Thread(target=self._answer_all, daemon=True).start()

    def submit(self, jobs: list[Waiting]) -> None:
        """Queue all of `jobs`; raise HTTPException, with none queued, if they exceed the limit."""
        with self.changed:
            if len(self.queue) + len(jobs) > web.WAITING:
                text = "too many questions at once; ask again soon"
                raise HTTPException(503, text, headers={"Retry-After": "1"})
            self.queue.extend(jobs)
            self.changed.notify(len(jobs))

    def _answer_all(self) -> None:
        while True:
            jobs = self._take()
            if jobs:
                replies = self._answer(jobs)
                loop = jobs[0].reply.get_loop()
                with contextlib.suppress(RuntimeError):  # the loop is closed: the server ended
                    loop.call_soon_threadsafe(_deliver, jobs, replies)
            with self.changed:
                self.busy -= 1

    def _take(self) -> list[Waiting]:
        """Wait for a question; return this thread's share of the queue, a row at most."""
        with self.changed:
            self.changed.wait_for(lambda: self.queue)

            # A few questions that find the model idle are one row, computed by all cores.
            few = len(self.queue) < 2 * self.slots
            use_all_threads = self.slots == 1 or (few and not self.busy)
            idle_slots = 1 if use_all_threads else self.slots - self.busy
            share = math.ceil(len(self.queue) / idle_slots)

            # Take questions up to the share, and up to a row.
            jobs: list[Waiting] = []
            size = 0
            while self.queue and len(jobs) < share:
                job = self.queue[0]
                size += len(job.question) + len(job.context)
                if jobs and size > self.row:
                    break
                jobs.append(job)
                self.queue.popleft()
            self.busy += 1
        torch.set_num_threads(self.cores if use_all_threads else 1)  # of this thread
        return [job for job in jobs if not job.reply.done()]

    def _answer(self, jobs: list[Waiting]) -> list[Reply | Exception]:
        """Return replies or errors: Stopped if nobody waits any more. If a row fails, each of its
        questions is answered by itself.
        """

        def should_continue(tokens: int) -> bool:
            self.row_tokens.observe(tokens)
            return not all(job.reply.done() for job in jobs)

        # A row fails as a whole: each of its questions is tried alone, to find the one at fault.
        questions = [(job.question, job.context) for job in jobs]
        try:
            return list(ask_together(self.trained, questions, self.threshold, should_continue))
        except Stopped as error:
            return [error] * len(jobs)
        except Exception as error:
            if len(jobs) == 1:
                return [_under_own_name(error, jobs[0].name)]
        return [self._answer([job])[0] for job in jobs]


def _under_own_name(error: Exception, name: str) -> Exception:
    """Return the error of a request that is alone in its row, with the request's name in it."""
    if isinstance(error, UserError) and error.key == "question 0":
        return error.under(name)
    return error


def _deliver(jobs: list[Waiting], replies: list[Reply | Exception]) -> None:
    """Complete the futures, in their event loop."""
    for job, reply in zip(jobs, replies, strict=True):
        if job.reply.done():  # nobody waits for it any more
            continue
        if isinstance(reply, Exception):
            job.reply.set_exception(reply)
        else:
            job.reply.set_result(reply)


class Ask(BaseModel):
    """A question and the text that may hold its answer."""

    question: str = Field(examples=["Who wrote it?"])
    context: str = Field(examples=["The book is by Ada."])


async def respond(questions: dict[str, Ask], request: Request) -> list[Reply]:
    """Return the replies to questions, in their order.

    Args:
        questions: by their names in errors.

    Raises:
        UserError: a question cannot be answered.
        HTTPException: there are too many, none is answered in time, or the client has left.
    """
    # All are checked before one is queued.
    loop = asyncio.get_running_loop()
    jobs = []
    for name, ask in questions.items():
        job = Waiting(name, ask.question.strip(), ask.context, loop.create_future())
        check_text(name, job.question, job.context, web.CONTEXT)
        jobs.append(job)
    request.app.state.batcher.submit(jobs)

    # Wait for all of them, the time limit, or the client to leave, whichever comes first.
    replies = asyncio.gather(*(job.reply for job in jobs))
    left = asyncio.ensure_future(request.receive())  # after the body comes the client's end alone
    left.add_done_callback(lambda _: replies.cancel())
    try:
        async with asyncio.timeout(web.SECONDS):  # type: ignore[attr-defined]  # Python 3.11
            return await replies
    except TimeoutError:
        text = f"no answer within {web.SECONDS:g} s; give a shorter context"
        raise HTTPException(504, text) from None
    except asyncio.CancelledError:
        if not left.done():  # the server ends
            raise
        raise HTTPException(499, "the client closed the connection") from None
    finally:
        left.cancel()
        for job in jobs:
            job.reply.cancel()


# Of the model's validation, as its page has them.
SHOWN = ("exact", "f1", "total")

router = APIRouter()
_ONE = TypeAdapter(Reply)
_LIST = TypeAdapter(list[Reply])


# A reply is written as it is: the framework would check each of its entries first.
@router.post("/answer", response_model=Reply, responses=_RESPONSES)
async def post_answer(question: Ask, request: Request) -> Response:
    """Find the answer to a question in a text, or say that the text has none."""
    replies = await respond({"request": question}, request)
    return Response(_ONE.dump_json(replies[0]), media_type="application/json")


@router.post("/answers", response_model=list[Reply], responses=_RESPONSES)
async def post_answers(
    questions: Annotated[list[Ask], Field(min_length=1, fail_fast=True)], request: Request
) -> Response:
    """Answer a list of questions, in order: all of them, or none."""
    named = {f"question {number}": ask for number, ask in enumerate(questions)}
    replies = await respond(named, request)
    return Response(_LIST.dump_json(replies), media_type="application/json")


@router.get("/metrics")
async def get_metrics(request: Request) -> Response:
    """Return the metrics in Prometheus' text format."""
    text = exposition.generate_latest(request.app.state.registry)
    return Response(text, media_type=exposition.CONTENT_TYPE_LATEST)


@router.get("/health")
async def get_health(request: Request) -> dict[str, Any]:
    """Return 200 as long as requests are answered, with the model and its limits."""
    trained = request.app.state.batcher.trained
    kind = trained.model.config.model_type
    scores = {name: trained.scores[name] for name in SHOWN if name in trained.scores}
    return {
        "status": "ok",
        "model": kind,
        "name": trained.name,
        "base": Path(trained.hparams.model or kind).name,
        "scores": scores,
        "max_question": MAX_QUESTION,
        "max_context": web.CONTEXT,
    }


@router.get("/", include_in_schema=False)
async def get_page() -> HTMLResponse:
    """Return the page."""
    return HTMLResponse(_PAGE_BYTES, headers={"Content-Security-Policy": POLICY})


def make_app(
    trained: Trained, threshold: float, names: Iterable[str] = LOOPBACK, token: str | None = None
) -> FastAPI:
    """Create the application: the page, and what `/openapi.json` lists.

    Args:
        names: Host headers without ports that are served, in lower case.
        token: bearer token that is required, if any.
    """
    app = FastAPI(
        title="Questions and answers",
        version="1",
        description=__doc__,
        docs_url=None,  # its scripts, and those of redoc, are from elsewhere
        redoc_url=None,
        exception_handlers=web.HANDLERS,
    )
    app.include_router(router)
    app.state.registry = CollectorRegistry()
    app.state.batcher = Batcher(trained, threshold, app.state.registry)

    # A middleware is around those added before it.
    app.add_middleware(RequestBodyLimitMiddleware, max_body_size=web.BODY)
    app.add_middleware(web.KnownHost, allowed_hosts=sorted(names), www_redirect=False)
    app.add_middleware(web.Meter, token=token, registry=app.state.registry)  # the outermost
    return app


def serve(
    trained: Trained,
    threshold: float,
    *,
    host: str,
    port: int,
    names: Sequence[str],
    token: str | None,
) -> None:
    """Serve until a signal ends the process.

    Args:
        threshold: null odds above which the model abstains.
        host: name or address to listen on.
        port: TCP port; 0: any that is free.
        names: other names by which clients call the server.
        token: bearer token that clients must send, if any.

    Raises:
        UserError: the address is not available.
    """
    # First what may fail: the address may be taken, or no address of this machine.
    listener = web.listen(host, port)
    served = web.served_names(host, names)
    server = web.make_server(make_app(trained, threshold, served, token))

    def stop(*_: object) -> None:
        server.should_exit = True

    for number in STOP_SIGNALS:  # uvicorn's own handlers hand them on to this one at the end
        signal.signal(number, stop)
    bound_host, bound_port = listener.getsockname()[:2]
    shown_host = f"[{bound_host}]" if ":" in bound_host else bound_host  # an IPv6 address
    url = f"http://{shown_host}:{bound_port}"
    access = web.describe_access(bound_host, served, token)
    print(f"serving on {url} (the endpoint: /openapi.json): {access}; Ctrl-C ends it", flush=True)
    server.run(sockets=[listener])
    print("stopped", flush=True)
    os._exit(0)  # the threads may compute for long
