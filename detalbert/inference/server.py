"""Page and JSON endpoint for questions to a trained model: `python predict.py --serve`.

An event loop takes requests, and threads compute. Questions that arrive while the model is busy are
answered together, in packed rows; one that finds it idle is answered at once. Excess load is
rejected immediately: a body over the limit (413), a full queue (503), a wait over the limit (504).
"""

import asyncio
import signal
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import FileResponse, JSONResponse, Response
from prometheus_client import CollectorRegistry, Gauge, Histogram, exposition
from pydantic import BaseModel, Field

from detalbert.engine.token_budget import ON_A_CPU
from detalbert.errors import UserError
from detalbert.inference import web
from detalbert.inference.answering import Stopped
from detalbert.inference.model import Trained
from detalbert.inference.reply import Reply, ask_together
from detalbert.inference.web import LOOPBACK, Guard
from detalbert.processes import STOP_SIGNALS
from detalbert.squad.question_stream import MAX_QUESTION, check_text

# The page is one file: it takes nothing from elsewhere and talks to this server alone.
PAGE = Path(__file__).with_name("page.html")
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; "
    "connect-src 'self'"
)
_MOMENT = 0.002  # seconds
_TOKENS = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768)


class Waiting(NamedTuple):
    """A question and the future of its reply, which is cancelled if nobody waits any more."""

    question: str
    context: str
    reply: asyncio.Future[Any]


class Batcher:
    """Queue of questions, answered in threads.

    Few questions that find the model idle form one batch, computed by all of torch's threads; many
    are divided into a batch for each thread, since threads that share a row wait for each other
    after every kernel, and for other users of a core. Belongs to one event loop.

    Args:
        registry: gets the metrics waiting and row_tokens.
    """

    def __init__(self, trained: Trained, threshold: float, registry: CollectorRegistry) -> None:
        self.trained, self.threshold = trained, threshold
        budget = trained.hparams.max_tokens_per_forward
        # Few tokens have fewer characters; what is more than a row goes into a second one.
        self.most = 3 * (ON_A_CPU if budget == "auto" else budget)
        count = torch.get_num_threads()
        self.slots = count if trained.forward.device.type == "cpu" else 1
        self.all_threads, self.one_thread = (
            ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(threads,))
            for workers, threads in ((1, count), (self.slots, 1))
        )
        self.queue: deque[Waiting] = deque()
        self.taken = 0  # slots that compute; all of them for a batch of all threads
        self.timer: asyncio.TimerHandle | None = None
        waiting = Gauge("waiting", "Requests that wait for the model", registry=registry)
        waiting.set_function(lambda: len(self.queue))
        said = "Real tokens of a packed row"
        self.row_tokens = Histogram("row_tokens", said, buckets=_TOKENS, registry=registry)

    def submit(self, jobs: list[Waiting]) -> None:
        """Queue all of `jobs`; raise HTTPException, with none queued, if they exceed the limit."""
        if len(self.queue) + len(jobs) > web.WAITING:
            again = {"Retry-After": "1"}
            raise HTTPException(503, "too many questions at once; ask again soon", again)
        self.queue += jobs
        self._start_soon()

    def _start_soon(self) -> None:
        """Start now if the model is idle; otherwise wait `_MOMENT` seconds for more questions. A
        client that has just received an answer may ask again, and one question is a poor batch.
        """
        if not self.taken:
            self._start()
        elif self.timer is None:
            self.timer = asyncio.get_running_loop().call_later(_MOMENT, self._start)

    def _start(self) -> None:
        self.timer = None
        while self.queue and self.taken < self.slots:
            waiting, free = len(self.queue), self.slots - self.taken
            whole = self.slots == 1 or (not self.taken and waiting < 2 * self.slots)
            slots, threads = (free, self.all_threads) if whole else (1, self.one_thread)
            if jobs := self._take(-(-waiting * slots // free)):
                self.taken += slots
                done = asyncio.get_running_loop().run_in_executor(threads, self._answer, jobs)
                done.add_done_callback(partial(self._finish, jobs, slots))

    def _take(self, count: int) -> list[Waiting]:
        """Return the first job not cancelled, and the next ones that fit, at most `count`."""
        jobs: list[Waiting] = []
        size = 0
        while self.queue and len(jobs) < count:
            length = len(self.queue[0].question) + len(self.queue[0].context)
            if jobs and size + length > self.most:
                break
            job = self.queue.popleft()
            if not job.reply.done():
                jobs.append(job)
                size += length
        return jobs

    def _answer(self, jobs: list[Waiting]) -> list[Any]:
        """Return replies or errors, in a thread: Stopped if all are cancelled before a row. If a
        batch fails, each of its questions is answered by itself.
        """

        def go_on(tokens: int) -> bool:
            self.row_tokens.observe(tokens)
            return not all(job.reply.done() for job in jobs)

        try:
            asked = [(job.question, job.context) for job in jobs]
            return ask_together(self.trained, asked, self.threshold, go_on)
        except Exception as error:
            if len(jobs) == 1 or isinstance(error, Stopped):
                return [error] * len(jobs)
        return [reply for job in jobs for reply in self._answer([job])]

    def _finish(self, jobs: list[Waiting], slots: int, done: asyncio.Future[list[Any]]) -> None:
        self.taken -= slots
        for job, reply in zip(jobs, done.result(), strict=True):
            if job.reply.done():  # nobody waits for it any more
                continue
            if isinstance(reply, Exception):
                job.reply.set_exception(reply)
            else:
                job.reply.set_result(reply)
        self._start_soon()


class Ask(BaseModel):
    """A question and the text that may hold its answer."""

    question: str = Field(examples=["Who wrote it?"])
    context: str = Field(examples=["The book is by Ada."])


def make_app(
    trained: Trained, threshold: float, names: frozenset[str] = LOOPBACK, token: str | None = None
) -> FastAPI:
    """Create the application: the page, and what `/openapi.json` lists. Access is as in `Guard`."""
    facts: Any = {"title": "Questions and answers", "version": "1", "description": __doc__}
    app = FastAPI(**facts, exception_handlers=web.HANDLERS)
    registry = CollectorRegistry()
    batcher = Batcher(trained, threshold, registry)
    app.add_middleware(Guard, names=names, token=token, registry=registry)
    problem = {"description": "one line, under `error`"}
    responses: Any = dict.fromkeys((400, 401, 408, 413, 421, 422, 503, 504), problem)

    @app.get("/", include_in_schema=False)
    async def page() -> FileResponse:
        return FileResponse(PAGE, headers={"Content-Security-Policy": POLICY})

    @app.get("/metrics")
    async def metrics() -> Response:
        """Return the metrics in Prometheus' text format."""
        kind = exposition.CONTENT_TYPE_LATEST
        return Response(exposition.generate_latest(registry), media_type=kind)

    @app.get("/health")
    async def health() -> dict[str, Any]:
        """Return 200 as long as requests are answered, with the model and its limits."""
        kind = trained.model.config.model_type
        facts = {"model": kind, "name": Path(trained.hparams.model or kind).name}
        return {"status": "ok", **facts, "max_question": MAX_QUESTION, "max_context": web.CONTEXT}

    @app.post("/answer", response_model=Reply, responses=responses)
    async def answer(asked: Ask, request: Request) -> Any:
        """Find the answer to a question in a text, or say that the text has none."""
        # As it is: the framework would check each entry against `Reply` first.
        return JSONResponse((await respond(batcher, [asked], request))[0])

    @app.post("/answers", response_model=list[Reply], responses=responses)
    async def answers(
        asked: Annotated[list[Ask], Field(min_length=1, fail_fast=True)], request: Request
    ) -> Any:
        """Answer a list of questions, in order: all of them, or none."""
        return JSONResponse(await respond(batcher, asked, request))

    return app


async def respond(batcher: Batcher, asked: list[Ask], request: Request) -> list[dict[str, Any]]:
    """Return a reply for each question. Raises HTTPException for the first that fails."""
    make = asyncio.get_running_loop().create_future
    jobs = [Waiting(each.question.strip(), each.context, make()) for each in asked]
    replies = [job.reply for job in jobs]
    left = asyncio.ensure_future(request.receive())  # after the body comes the client's end alone
    left.add_done_callback(lambda _: [reply.cancel() for reply in replies])
    try:
        for job in jobs:
            check_text("request", job.question, job.context, web.CONTEXT)
        batcher.submit(jobs)
        ends: Any = {"timeout": web.SECONDS, "return_when": asyncio.FIRST_EXCEPTION}
        done, late = await asyncio.wait(replies, **ends)
        if left.done():
            raise HTTPException(499, "the client closed the connection")
        for reply in done:
            reply.result()  # raises its error
        if late:
            said = f"no answer within {web.SECONDS:g} s; give a shorter context"
            raise HTTPException(504, said)
        return [asdict(reply.result()) for reply in replies]
    except UserError as error:
        raise HTTPException(422, str(error)) from None
    finally:
        left.cancel()  # and so are the replies that nobody waits for any more


def serve(
    trained: Trained, threshold: float, address: tuple[str, int], names: Any, token: str | None
) -> None:
    """Serve until SIGTERM or SIGINT. Raises UserError if the address is not available.

    Args:
        names: other names by which clients call the server.
        token: bearer token that clients must send, if any.
    """
    listener = web.listen(*address)
    served = web.served_names(address[0], names)
    app = make_app(trained, threshold, served, token)
    server = web.make_server(app)
    for number in STOP_SIGNALS:  # uvicorn's own handlers hand them on to these at the end
        signal.signal(number, lambda *_: setattr(server, "should_exit", True))
    host, port = listener.getsockname()[:2]
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    access = web.describe_access(host, served, token)
    print(f"serving on {url} (the endpoint: /openapi.json): {access}; Ctrl-C ends it", flush=True)
    server.run(sockets=[listener])
    print("stopped")
