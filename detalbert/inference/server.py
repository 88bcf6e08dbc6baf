"""Page and JSON endpoint for questions to a trained model: `python predict.py --serve`.

One process runs the model, and one forked from it serves requests, so that neither blocks on the
other's Python. Questions that arrive while the model is busy are answered together, in packed rows;
one that finds it idle is answered at once. Excess load is rejected immediately: a body over the
limit (413), a full queue (503), a wait over the limit (504).
"""

import asyncio
import itertools
import os
import signal
import time
from collections import deque
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from detalbert.engine.token_budget import ON_A_CPU
from detalbert.errors import UserError
from detalbert.inference import engine, web
from detalbert.inference.answering import Stopped
from detalbert.inference.guard import LOCAL, Access, Guard
from detalbert.inference.meters import Counted, Meters, show_meters
from detalbert.inference.model import Trained
from detalbert.inference.web import problem
from detalbert.processes import CHILDREN, STOP_SIGNALS
from detalbert.squad.question_stream import check_text

_MOMENT = 0.002  # seconds
PAGE = Path(__file__).with_name("page.html")


@dataclass(frozen=True)
class Limits:
    """Limits of one request, and of all requests together."""

    body: int = 1 << 20  # bytes
    context: int = 200_000  # characters
    waiting: int = 64  # questions behind those that the model works on
    seconds: float = 30.0  # for the request to arrive, and again for its answer


LIMITS = Limits()


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
    """The model's answer to a question."""

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


class Full(Exception):
    """The queue of questions is full."""


class Waiting:
    """A question and the future of its reply; `deadline` by time.monotonic."""

    def __init__(self, question: str, context: str, deadline: float) -> None:
        self.question, self.context, self.deadline = question, context, deadline
        self.reply: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()

    def wanted(self) -> bool:
        return not self.reply.done() and time.monotonic() < self.deadline

    def end(self, reply: dict[str, Any] | Exception) -> None:
        if self.reply.done():  # nobody waits for it any more
            return
        if isinstance(reply, Exception):
            self.reply.set_exception(reply)
        else:
            self.reply.set_result(reply)


class Worker:
    """Batches queued questions, up to about one packed row each, and sends them to the model
    process.

    Few questions that find the model idle form one batch, run by all its threads; many are divided
    among its `slots`. Belongs to one event loop.

    Args:
        model: connection to `engine.answer_batches`.
        slots: concurrent batches.
        most: characters per batch.
        waiting: most questions in the queue.
    """

    def __init__(self, model: Connection, slots: int, most: int, waiting: int) -> None:
        self.model, self.slots, self.most, self.room = model, slots, most, waiting
        self.queue: deque[Waiting] = deque()
        self.alone: list[Waiting] = []  # of a batch that failed: each is tried by itself
        self.batches: dict[int, list[Waiting]] = {}  # what the model works on, by number
        self.whole = self.listens = False  # whether it is one batch for all threads
        self.timer: asyncio.TimerHandle | None = None
        self.numbers = itertools.count()
        self.meters = Meters(lambda: len(self.queue))

    def submit(self, *jobs: Waiting) -> None:
        """Queue all of `jobs`; raise Full, with none queued, if they exceed the limit."""
        if not self.listens:
            asyncio.get_running_loop().add_reader(self.model.fileno(), self._receive)
            os.set_blocking(self.model.fileno(), True)  # uvloop had it give what there is
            self.listens = True
        if len(self.queue) + len(jobs) > self.room:
            raise Full
        self.queue += jobs
        self._send_soon()

    def leave(self, jobs: list[Waiting]) -> None:
        """Cancel `jobs`, and batches for which no client is waiting any more."""
        if not [job for job in jobs if job.reply.cancel()]:
            return
        for number, batch in self.batches.items():
            if not any(job.wanted() for job in batch):
                self.model.send(number)

    def _send_soon(self) -> None:
        """Send now if the model is idle; otherwise wait `_MOMENT` seconds for more questions. A
        client that has just received an answer may ask again, and one question is a poor batch.
        """
        if not self.batches:
            self._send()
        elif self.timer is None:
            self.timer = asyncio.get_running_loop().call_later(_MOMENT, self._send)

    def _send(self) -> None:
        self.timer = None
        while (self.queue or self.alone) and not self.whole and len(self.batches) < self.slots:
            waiting, free = len(self.queue), self.slots - len(self.batches)
            whole = self.slots == 1 or (not self.batches and waiting < 2 * self.slots)
            if jobs := self._take(waiting if whole else -(-waiting // free)):
                self.whole, number = whole, next(self.numbers)
                self.batches[number] = jobs
                pairs = [(job.question, job.context) for job in jobs]
                self.model.send(engine.Asked(number, pairs, whole))

    def _take(self, count: int) -> list[Waiting]:
        """Return the first job still wanted, and the next ones that fit, at most `count`."""
        while self.alone:
            if (job := self.alone.pop()).wanted():
                return [job]
        jobs: list[Waiting] = []
        size = 0
        while self.queue and len(jobs) < count:
            length = len(self.queue[0].question) + len(self.queue[0].context)
            if jobs and size + length > self.most:
                break
            job = self.queue.popleft()
            if job.wanted():
                jobs.append(job)
                size += length
        return jobs

    def _receive(self) -> None:
        number, found, row_tokens = self.model.recv()
        jobs, self.whole = self.batches.pop(number), False
        for tokens in row_tokens:
            self.meters.row_tokens.observe(tokens)
        failed = isinstance(found, Exception)
        if failed and len(jobs) > 1 and not isinstance(found, Stopped):
            self.alone += jobs
        else:
            for job, reply in zip(jobs, [found] * len(jobs) if failed else found, strict=True):
                job.end(reply)
        self._send_soon()


def make_app(
    trained: Trained, model: Connection, limits: Limits = LIMITS, access: Access = LOCAL
) -> FastAPI:
    """Create the application: `/`, the page; `/answer`, `/answers`; `/health`, `/metrics`,
    `/openapi.json`.

    `model` is the connection to `engine.answer_batches`, which runs `trained`.
    """
    app = FastAPI(title="Questions and answers", version="1", description=__doc__)
    budget = trained.hparams.max_tokens_per_forward
    # Few tokens have fewer characters; what is more than a row goes into a second one.
    most = 3 * (ON_A_CPU if budget == "auto" else budget)
    worker = Worker(model, engine.slots(trained), most, limits.waiting)
    web.handle_errors(app)
    web.show_page(app, PAGE)
    show_meters(app, worker.meters, {"model": trained.model.config.model_type})
    responses: Any = dict.fromkeys((400, 401, 408, 413, 421, 422, 503, 504), web.PROBLEM)

    @app.post("/answer", response_model=Reply, responses=responses)
    async def answer(asked: Ask) -> Any:
        """Find the answer to a question in a text, or say that the text has none."""
        found = await respond(worker, [asked], limits)
        # As it is: the framework would check each entry against `Reply` first.
        return JSONResponse(found[0]) if isinstance(found, list) else found

    @app.post("/answers", response_model=list[Reply], responses=responses)
    async def answers(asked: Annotated[list[Ask], Field(min_length=1)]) -> Any:
        """Answer a list of questions, in order: all of them, or none."""
        found = await respond(worker, asked, limits)
        return JSONResponse(found) if isinstance(found, list) else found

    app.add_middleware(web.BoundedBody, body=limits.body, seconds=limits.seconds)
    app.add_middleware(Guard, access=access)
    paths = frozenset(route.path for route in app.routes)  # type: ignore[attr-defined]  # ours have one
    app.add_middleware(Counted, meters=worker.meters, paths=paths)
    return app


async def respond(worker: Worker, asked: list[Ask], limits: Limits) -> Any:
    """Return a reply for each question, or a problem response for the first that fails."""
    deadline = time.monotonic() + limits.seconds
    jobs = [Waiting(each.question.strip(), each.context, deadline) for each in asked]
    try:
        for job in jobs:
            check_text("request", job.question, job.context, limits.context)
        worker.submit(*jobs)
        waits = [job.reply for job in jobs]
        done, late = await asyncio.wait(
            waits, timeout=limits.seconds, return_when=asyncio.FIRST_EXCEPTION
        )
        for error in filter(None, [reply.exception() for reply in done]):
            raise error
        if late:
            raise Stopped
        return [reply.result() for reply in waits]
    except UserError as error:
        return problem(422, str(error))
    except Full:
        again = {"Retry-After": "1"}
        return problem(503, "too many questions at once; ask again soon", **again)
    except Stopped:
        return problem(504, f"no answer within {limits.seconds:g} s; give a shorter context")
    finally:
        worker.leave(jobs)


def serve(trained: Trained, threshold: float, host: str, port: int, access: Access) -> None:
    """Serve until SIGTERM or SIGINT. Raises UserError if the address is not available."""
    listener = web.listen(host, port)
    ours, theirs = Pipe()
    stopped, stop = Pipe(duplex=False)

    def take_requests() -> None:
        """Serve requests in the forked process, without computing; `stopped` ends it."""
        ours.close()
        stop.close()
        app = make_app(trained, theirs, access=access)
        web.run(app, listener, access.token is not None, stopped)

    web_side = CHILDREN.Process(target=take_requests)
    web_side.start()
    theirs.close()
    listener.close()
    for number in STOP_SIGNALS:
        signal.signal(number, lambda *_: stop.close())
    engine.answer_batches(trained, threshold, ours)
    web_side.join()
    if web_side.exitcode != 0:
        raise UserError(f"--serve: the process that takes requests ended ({web_side.exitcode})")
