"""A page and a JSON endpoint to ask a trained model: `python predict.py --serve`.

One thread runs the model. Questions that wait while it works are answered together, in packed rows;
one that finds it idle is answered at once. What is too much is refused at once and clearly: a body
over the limit (413), a full queue (503), a wait over the limit (504).
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Condition, Thread
from typing import Annotated, Any

from fastapi import FastAPI
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from detalbert.engine.token_budget import ON_A_CPU
from detalbert.errors import UserError
from detalbert.inference import web
from detalbert.inference.answering import Stopped, answer_together
from detalbert.inference.guard import LOCAL, Access, Guard
from detalbert.inference.meters import Counted, Meters, show_meters
from detalbert.inference.model import Trained
from detalbert.inference.reply import replies
from detalbert.inference.web import problem
from detalbert.squad.question_stream import check_text

PAGE = Path(__file__).with_name("page.html")


@dataclass(frozen=True)
class Limits:
    """What one request, and all of them together, may take."""

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


class Full(Exception):
    """As many questions wait as may."""


class Job:
    """A question and who waits for its answer; made in the event loop that waits for it.

    Args: deadline: by time.monotonic.
    """

    def __init__(self, question: str, context: str, deadline: float) -> None:
        self.question, self.context, self.deadline = question, context, deadline
        self.reply: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()

    def wanted(self) -> bool:
        return not self.reply.done() and time.monotonic() < self.deadline


def end(jobs: Sequence[Job], replies: Sequence[dict[str, Any] | BaseException]) -> None:
    """Give each job its reply, from a thread: one call into the event loop for all of them."""

    def give() -> None:
        for job, reply in zip(jobs, replies, strict=True):
            if job.reply.done():  # nobody waits for it any more
                continue
            if isinstance(reply, BaseException):
                job.reply.set_exception(reply)
            else:
                job.reply.set_result(reply)

    with contextlib.suppress(RuntimeError):  # the loop is closed: the server ends
        jobs[0].reply.get_loop().call_soon_threadsafe(give)


class Worker:
    """The thread that runs the model: all questions that wait at a time, as many as fill a row."""

    def __init__(self, trained: Trained, threshold: float, waiting: int) -> None:
        self.trained, self.threshold, self.room = trained, threshold, waiting
        self.queue: deque[Job] = deque()
        self.changed = Condition()
        self.meters = Meters(lambda: len(self.queue))
        budget = trained.hparams.max_tokens_per_forward
        # Few tokens have fewer characters; what is more than a row goes into a second one.
        self.most = 3 * (ON_A_CPU if budget == "auto" else budget)
        Thread(target=self._work, daemon=True).start()

    def submit(self, *jobs: Job) -> None:
        """All or none of them. Raises Full."""
        with self.changed:
            if len(self.queue) + len(jobs) > self.room:
                raise Full
            self.queue += jobs
            self.changed.notify()

    def _work(self) -> None:
        while True:
            self._try(self._take())

    def _try(self, jobs: list[Job]) -> None:
        """The thread outlives whatever a question does, and so do the others with it."""
        try:
            self._answer(jobs)
        except BaseException as error:
            if len(jobs) > 1 and not isinstance(error, Stopped):
                for job in jobs:
                    self._try([job])
            else:
                end(jobs, [error] * len(jobs))

    def _take(self) -> list[Job]:
        """The first that is waited for, and those behind it that fit; waits while there is none."""
        jobs: list[Job] = []
        size = 0
        with self.changed:
            while self.changed.wait_for(lambda: self.queue or jobs) and self.queue:
                length = len(self.queue[0].question) + len(self.queue[0].context)
                if jobs and size + length > self.most:
                    break
                job = self.queue.popleft()
                if job.wanted():
                    jobs.append(job)
                    size += length
        return jobs

    def _answer(self, jobs: list[Job]) -> None:
        """Reply to all. Raises Stopped when nobody waits any more, and what a question causes."""

        def go_on(tokens: int) -> bool:
            self.meters.row_tokens.observe(tokens)
            return any(job.wanted() for job in jobs)

        asked = [(job.question, job.context) for job in jobs]
        answered = answer_together(self.trained, asked, self.threshold, go_on)
        end(jobs, replies([job.question for job in jobs], answered, self.threshold))


def make_app(
    trained: Trained, threshold: float, limits: Limits = LIMITS, access: Access = LOCAL
) -> FastAPI:
    """The application: `/`, the page; `/answer` and `/answers`; `/health` and `/metrics`;
    `/openapi.json`, which documents them."""
    app = FastAPI(title="Questions and answers", version="1", description=__doc__)
    worker = app.state.worker = Worker(trained, threshold, limits.waiting)
    web.handle_errors(app)
    web.show_page(app, PAGE)
    show_meters(app, worker.meters, {"model": trained.model.config.model_type})
    responses = dict.fromkeys((400, 401, 408, 413, 421, 422, 503, 504), web.PROBLEM)

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
    paths = frozenset(route.path for route in app.routes)
    app.add_middleware(Counted, meters=worker.meters, paths=paths)
    return app


async def respond(worker: Worker, asked: list[Ask], limits: Limits) -> Any:
    """A reply for each question, or the problem of the first that has one."""
    deadline = time.monotonic() + limits.seconds
    jobs = [Job(each.question.strip(), each.context, deadline) for each in asked]
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
        for job in jobs:
            job.reply.cancel()


def serve(trained: Trained, threshold: float, host: str, port: int, access: Access) -> None:
    """Serve until interrupted. Raises UserError for an address that the system does not give."""
    app = make_app(trained, threshold, access=access)
    web.run(app, host, port, access.token is not None)
