"""The model's side of a server: batches of questions come over a connection, replies go back."""

import contextlib
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from threading import Lock
from typing import Any, NamedTuple

import torch

from detalbert.errors import UserError
from detalbert.inference.answering import Stopped, answer_together
from detalbert.inference.model import Trained
from detalbert.inference.reply import replies


class Asked(NamedTuple):
    """Questions and contexts. Their number alone comes after them when nobody waits any more."""

    number: int
    pairs: Sequence[tuple[str, str]]
    whole: bool  # all threads work on it, and no other comes until it is answered


class Batch(NamedTuple):
    """What goes back: a reply for each question, or the error that all of them share."""

    number: int
    replies: list[dict[str, Any]] | Exception
    row_tokens: list[int]  # of each packed row that was run


def slots(trained: Trained) -> int:
    """Batches at a time: one for each thread of a CPU, which then computes by itself. Threads that
    share a row wait for each other after every kernel, and for whoever else wants a core."""
    return torch.get_num_threads() if trained.forward.device.type == "cpu" else 1


def answer_batches(trained: Trained, threshold: float, connection: Connection) -> None:
    """Answer each `Asked` that comes with a `Batch`, until the other end is closed."""
    running: set[int] = set()
    sending = Lock()

    def answer(asked: Asked, stopped: Callable[[], bool]) -> None:
        batch = answer_batch(trained, threshold, asked, stopped)
        running.discard(asked.number)
        with sending:
            connection.send(batch)

    def begin(asked: Asked) -> None:
        running.add(asked.number)
        if asked.whole:
            answer(asked, connection.poll)  # only its number can come
        else:
            pool.submit(answer, asked, lambda: asked.number not in running)

    one_thread: dict[str, Any] = {"initializer": torch.set_num_threads, "initargs": (1,)}
    count = slots(trained)
    with ThreadPoolExecutor(count, **one_thread) as pool, contextlib.suppress(EOFError, OSError):
        try:
            while True:
                message = connection.recv()
                if isinstance(message, int):
                    running.discard(message)
                else:
                    begin(message)
        finally:
            running.clear()  # nobody waits any more


def answer_batch(
    trained: Trained, threshold: float, asked: Asked, stopped: Callable[[], bool]
) -> Batch:
    """The error is Stopped where `stopped` says so before a row but the first, UserError for what a
    question causes; another one has the traceback as its text."""
    row_tokens: list[int] = []

    def go_on(tokens: int) -> bool:
        row_tokens.append(tokens)
        return len(row_tokens) == 1 or not stopped()

    found: list[dict[str, Any]] | Exception
    try:
        answered = answer_together(trained, asked.pairs, threshold, go_on)
        found = replies([question for question, _ in asked.pairs], answered, threshold)
    except (Stopped, UserError) as error:
        found = error
    except Exception:
        found = RuntimeError(traceback.format_exc())
    return Batch(asked.number, found, row_tokens)
