"""A page and a JSON endpoint to ask a trained model: `python predict.py --serve`.

One thread runs the model, behind a bounded queue. What is too much is refused at once and clearly:
a body over the limit (413), a full queue (503), a wait over the limit (504).
"""

import asyncio
import contextlib
import time
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass
from pathlib import Path
from queue import Full, Queue
from threading import Thread
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel, Field

from detalbert.errors import UserError
from detalbert.inference import web
from detalbert.inference.answering import Stopped
from detalbert.inference.model import Trained
from detalbert.inference.reply import ask
from detalbert.inference.web import problem
from detalbert.squad.question_stream import check_text

PAGE = Path(__file__).with_name("page.html")


@dataclass(frozen=True)
class Limits:
    """What one request, and all of them together, may take."""

    body: int = 1 << 20  # bytes
    context: int = 200_000  # characters
    waiting: int = 64  # requests behind the one that the model works on
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


def make_app(trained: Trained, threshold: float, limits: Limits = LIMITS) -> FastAPI:
    """The application: `/`, the page; `/answer`; `/openapi.json`, which documents it."""
    app = FastAPI(title="Questions and answers", version="1", description=__doc__)
    worker = Worker(trained, threshold, limits.waiting)
    web.handle_errors(app)
    web.show_page(app, PAGE)

    @app.post(
        "/answer",
        response_model=Reply,
        responses=dict.fromkeys((400, 408, 413, 422, 503, 504), web.PROBLEM),
    )
    async def answer(asked: Ask) -> Any:
        """Find the answer to a question in a text, or say that the text has none."""
        question = asked.question.strip()
        try:
            check_text("request", question, asked.context, limits.context)
            future = worker.submit(question, asked.context, time.monotonic() + limits.seconds)
            return await asyncio.wait_for(asyncio.wrap_future(future), limits.seconds)
        except UserError as error:
            return problem(422, str(error))
        except Full:
            again = {"Retry-After": "1"}
            return problem(503, "too many questions at once; ask again soon", **again)
        except (asyncio.TimeoutError, Stopped):
            return problem(504, f"no answer within {limits.seconds:g} s; give a shorter context")

    app.add_middleware(web.BoundedBody, body=limits.body, seconds=limits.seconds)
    return app


def serve(trained: Trained, threshold: float, host: str, port: int) -> None:
    """Serve until interrupted. Raises UserError for an address that the system does not give."""
    web.run(make_app(trained, threshold), host, port)
