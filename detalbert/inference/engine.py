"""Model side of a server: receives batches of questions over a connection, sends replies."""

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
    """A request to answer question-context pairs. Sending its `number` alone later cancels it."""

    number: int
    pairs: Sequence[tuple[str, str]]
    whole: bool  # all threads work on it, and no other comes until it is answered


class Batch(NamedTuple):
    """The result of a request: a reply per question, or the error that all of them share."""

    number: int
    replies: list[dict[str, Any]] | Exception
    row_tokens: list[int]  # of each packed row that was run


def slots(trained: Trained) -> int:
    """Return the number of concurrent batches: one per CPU thread, each computing on its own.
    Threads that share a row wait for each other after every kernel, and for other users of a core.
    """
    return torch.get_num_threads() if trained.forward.device.type == "cpu" else 1


def answer_batches(trained: Trained, threshold: float, connection: Connection) -> None:
    """Answer each `Asked` received with a `Batch`, until the other end is closed."""
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
    """Answer `asked`; on failure, `replies` is the exception.

    Stopped (`stopped` returned True before a row after the first), UserError (caused by a
    question), or RuntimeError with the traceback as its text.
    """
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
