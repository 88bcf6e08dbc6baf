"""A page and an endpoint that complete text: `python predict.py --serve` with a language model.

One thread runs the model: a token for each request that has a place, in turn. Each has a cache and
random numbers of its own, so its text is the same however many others there are. What is too much
is refused at once and clearly: a body over the limit (413), a full queue (503), a wait over the
limit (504).
"""

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Condition, Thread
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from detalbert.errors import UserError
from detalbert.inference import web
from detalbert.inference.guard import LOCAL, Access, Guard
from detalbert.inference.meters import Counted, Meters, show_meters
from detalbert.inference.web import problem
from detalbert.settings.sections import parse_section
from lm.inference.complete import Sampling, Step, complete

PAGE = Path(__file__).with_name("page.html")
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Limits:
    """What one request, and all of them together, may take."""

    body: int = 1 << 20  # bytes
    prompt: int = 200_000  # characters
    tokens: int = 2_000  # that one request may ask for
    places: int = 16  # requests that the model works on, in turn
    waiting: int = 64  # requests behind them
    seconds: float = 120.0  # for a request's whole text, its wait for a place included
    arrival: float = 30.0  # seconds for the request to arrive


LIMITS = Limits()


class Asked(BaseModel):
    """A prompt and how to go on from it; the same request gives the same text."""

    prompt: str = Field(examples=["Once upon a time"])
    max_new_tokens: int = Sampling.max_new_tokens
    temperature: float = Field(Sampling.temperature, description="0: the likeliest token, always")
    top_p: float = Field(Sampling.top_p, description="draw of the likeliest with this probability")
    seed: int = Sampling.seed


class Job:
    """One request: what the worker's thread makes comes out of `steps` in the server's loop.

    An exception among the steps is the last of them.
    """

    def __init__(self, steps: Iterator[Step], seconds: float) -> None:
        self.making, self.deadline = steps, time.monotonic() + seconds
        self.loop = asyncio.get_running_loop()
        self.steps: asyncio.Queue[Step | BaseException] = asyncio.Queue()

    def go_on(self, ending: bool) -> bool:
        """In the worker's thread: make one step; whether there are more to come."""
        try:
            step = Step("", "the server stopped") if ending else next(self.making)
            if step.ended is None and time.monotonic() > self.deadline:
                step = step._replace(ended="time")
            last = step.ended is not None
        except BaseException as error:  # the thread outlives whatever one request does
            step, last = error, True
        with contextlib.suppress(RuntimeError):  # the server has ended
            self.loop.call_soon_threadsafe(self.steps.put_nowait, step)
        return not last


class Full(Exception):
    """As many requests wait as may."""


class Worker:
    """The thread that runs the model."""

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, limits: Limits
    ) -> None:
        self.model, self.tokenizer, self.limits = model, tokenizer, limits
        self.jobs: list[Job] = []  # the first of them have places
        self.changed = Condition()
        self.ending = False
        Thread(target=self._work, daemon=True).start()

    def submit(self, job: Job) -> None:
        """Raises Full."""
        with self.changed:
            if len(self.jobs) >= self.limits.places + self.limits.waiting:
                raise Full
            self.jobs.append(job)
            self.changed.notify()

    def drop(self, job: Job) -> None:
        """Free the job's place, if it still has one."""
        with self.changed, contextlib.suppress(ValueError):
            self.jobs.remove(job)

    def end(self) -> None:
        """End every text with what it has; takes no lock, for it may interrupt who has it."""
        self.ending = True

    def _work(self) -> None:
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self.jobs)
                turn = self.jobs[: None if self.ending else self.limits.places]
            for job in turn:
                if job in self.jobs and not job.go_on(self.ending):
                    self.drop(job)


class Stream(StreamingResponse):
    """Steps as lines of JSON, {"text": ...}; the last has "ended", too.

    The job's place is free when the client has gone away.
    """

    def __init__(self, job: Job, first: Step, worker: Worker) -> None:
        super().__init__(self._lines(first), media_type="application/x-ndjson")
        self.job, self.worker = job, worker

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.worker.drop(self.job)

    async def _lines(self, step: Step | BaseException) -> AsyncIterator[str]:
        while isinstance(step, Step):
            line = {"text": step.text} | ({"ended": step.ended} if step.ended else {})
            if step.text or step.ended:
                yield json.dumps(line, ensure_ascii=False) + "\n"
            if step.ended:
                return
            step = await self.job.steps.get()
        log.error("a request failed", exc_info=step)
        yield '{"text": "", "ended": "the model failed; the server\'s log says how"}\n'


async def first_step(job: Job, request: Request) -> Step | BaseException | None:
    """The first step; None where the client went away or the deadline passed before it."""
    made = asyncio.ensure_future(job.steps.get())
    gone = asyncio.ensure_future(request.receive())  # the body is read: what comes is the end
    left = job.deadline - time.monotonic()
    try:
        await asyncio.wait((made, gone), timeout=left, return_when=asyncio.FIRST_COMPLETED)
        return made.result() if made.done() else None
    finally:
        made.cancel()
        gone.cancel()


def make_app(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    limits: Limits = LIMITS,
    access: Access = LOCAL,
) -> FastAPI:
    """The application: `/`, the page; `/completions`; `/health` and `/metrics`; `/openapi.json`,
    which documents them."""
    app = FastAPI(title="Text completion", version="1", description=__doc__)
    worker = app.state.worker = Worker(model, tokenizer, limits)
    web.handle_errors(app)
    web.show_page(app, PAGE)
    meters = Meters(lambda: max(0, len(worker.jobs) - limits.places))
    show_meters(app, meters, {"model": model.config.model_type})

    @app.post(
        "/completions",
        response_class=StreamingResponse,
        responses={
            200: {"description": "lines of JSON as the text comes: text; ended, in the last"},
            **dict.fromkeys((400, 401, 408, 413, 421, 422, 503, 504), web.PROBLEM),
        },
    )
    async def completions(asked: Asked, request: Request) -> Any:
        """Go on from a prompt. `ended` says why the text ends: end of text, max_new_tokens,
        positions (the model has no more), time, the server stopped."""
        return await respond(worker, asked, request)

    app.add_middleware(web.BoundedBody, body=limits.body, seconds=limits.arrival)
    app.add_middleware(Guard, access=access)
    paths = frozenset(route.path for route in app.routes)
    app.add_middleware(Counted, meters=meters, paths=paths)
    return app


async def respond(worker: Worker, asked: Asked, request: Request) -> Response:
    """A stream from the first step on; before it what is wrong has a status of its own."""
    limits = worker.limits
    try:
        sampling = check(asked, limits)
        steps = complete(worker.model, worker.tokenizer, asked.prompt, sampling)
        job = Job(steps, limits.seconds)
        worker.submit(job)
    except UserError as error:
        return problem(422, str(error))
    except Full:
        again = {"Retry-After": "1"}
        return problem(503, "too many requests at once; ask again soon", **again)
    step = None
    try:
        step = await first_step(job, request)
    finally:
        if not isinstance(step, Step):
            worker.drop(job)
    if isinstance(step, Step):
        return Stream(job, step, worker)
    if isinstance(step, UserError):
        return problem(422, str(step))
    if step is not None:
        raise step
    return problem(504, f"no place within {limits.seconds:g} s; ask again later")


def check(asked: Asked, limits: Limits) -> Sampling:
    """How to sample. Raises UserError for values that cannot be and those over a limit."""
    values = asked.model_dump()
    prompt = values.pop("prompt")
    for what, size, limit in (
        ("characters of prompt", len(prompt), limits.prompt),
        ("max_new_tokens", asked.max_new_tokens, limits.tokens),
    ):
        if size > limit:
            raise UserError(f"request: {size:,} {what}, {limit:,} at most; give less")
    return parse_section(Sampling, "request", values)


def serve(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    host: str,
    port: int,
    access: Access,
) -> None:
    """Serve until interrupted. Raises UserError for an address that the system does not give."""
    app = make_app(model, tokenizer, access=access)
    web.run(app, web.listen(host, port), access.token is not None, app.state.worker.end)
