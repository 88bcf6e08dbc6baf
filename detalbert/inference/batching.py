"""Answers to waiting questions: one queue, batches of up to about a packed row, compute threads."""

import asyncio
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import torch

from detalbert.engine.token_budget import ON_A_CPU
from detalbert.inference.answering import Stopped, answer_together
from detalbert.inference.meters import Meters
from detalbert.inference.model import Trained
from detalbert.inference.reply import replies

_MOMENT = 0.002  # seconds


class Full(Exception):
    """The queue of questions is full."""


class Waiting:
    """A question and the future of its reply; `deadline` by time.monotonic."""

    def __init__(self, question: str, context: str, deadline: float) -> None:
        self.question, self.context, self.deadline = question, context, deadline
        self.reply: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()

    def wanted(self) -> bool:
        return not self.reply.done() and time.monotonic() < self.deadline

    def end(self, reply: dict[str, Any] | BaseException) -> None:
        if self.reply.done():  # nobody waits for it any more
            return
        if isinstance(reply, BaseException):
            self.reply.set_exception(reply)
        else:
            self.reply.set_result(reply)


class Batcher:
    """Queue of questions, answered in threads.

    Few questions that find the model idle form one batch, computed by all of torch's threads; many
    are divided into a batch for each thread, since threads that share a row wait for each other
    after every kernel, and for other users of a core. Belongs to one event loop.

    Args:
        room: most questions in the queue.
    """

    def __init__(self, trained: Trained, threshold: float, room: int) -> None:
        self.trained, self.threshold, self.room = trained, threshold, room
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
        self.alone: list[Waiting] = []  # of a batch that failed: each is tried by itself
        self.running = 0  # batches
        self.whole = False  # whether it is one batch for all threads
        self.timer: asyncio.TimerHandle | None = None
        self.meters = Meters(lambda: len(self.queue))

    def submit(self, *jobs: Waiting) -> None:
        """Queue all of `jobs`; raise Full, with none queued, if they exceed the limit."""
        if len(self.queue) + len(jobs) > self.room:
            raise Full
        self.queue += jobs
        self._start_soon()

    def _start_soon(self) -> None:
        """Start now if the model is idle; otherwise wait `_MOMENT` seconds for more questions. A
        client that has just received an answer may ask again, and one question is a poor batch.
        """
        if not self.running:
            self._start()
        elif self.timer is None:
            self.timer = asyncio.get_running_loop().call_later(_MOMENT, self._start)

    def _start(self) -> None:
        self.timer = None
        while (self.queue or self.alone) and not self.whole and self.running < self.slots:
            waiting, free = len(self.queue), self.slots - self.running
            whole = self.slots == 1 or (not self.running and waiting < 2 * self.slots)
            if jobs := self._take(waiting if whole else -(-waiting // free)):
                self.whole = whole
                self.running += 1
                threads = self.all_threads if whole else self.one_thread
                found = asyncio.get_running_loop().run_in_executor(threads, self._answer, jobs)
                found.add_done_callback(partial(self._finish, jobs))

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

    def _answer(self, jobs: list[Waiting]) -> list[dict[str, Any]]:
        """Return the replies, in a thread. Raises Stopped before a row if no job is wanted."""

        def go_on(tokens: int) -> bool:
            self.meters.row_tokens.observe(tokens)
            return any(job.wanted() for job in jobs)

        asked = [(job.question, job.context) for job in jobs]
        answered = answer_together(self.trained, asked, self.threshold, go_on)
        return replies([question for question, _ in asked], answered, self.threshold)

    def _finish(self, jobs: list[Waiting], found: asyncio.Future[list[dict[str, Any]]]) -> None:
        self.running -= 1
        self.whole = False
        error = found.exception()
        if error and len(jobs) > 1 and not isinstance(error, Stopped):
            self.alone += jobs
        else:
            ends: list[Any] = [error] * len(jobs) if error else found.result()
            for job, end in zip(jobs, ends, strict=True):
                job.end(end)
        self._start_soon()
