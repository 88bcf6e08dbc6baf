"""Answers to waiting questions: one queue, batches of up to about a packed row, compute threads."""

import asyncio
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import torch
from fastapi import HTTPException
from prometheus_client import CollectorRegistry, Gauge, Histogram

from detalbert.engine.token_budget import ON_A_CPU
from detalbert.inference import web
from detalbert.inference.answering import Stopped
from detalbert.inference.model import Trained
from detalbert.inference.reply import ask_together

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
