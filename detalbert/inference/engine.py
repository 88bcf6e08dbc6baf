"""The model's side of a server: batches of questions come over a connection, replies go back."""

import contextlib
import traceback
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import torch

from detalbert.errors import UserError
from detalbert.inference.answering import Stopped, answer_together
from detalbert.inference.model import Trained
from detalbert.inference.reply import replies

Asked = Sequence[tuple[str, str]]  # questions and contexts
STOP = None  # comes while a batch is answered, when nobody waits for it any more


class Batch(NamedTuple):
    """What goes back: a reply for each question, or the error that all of them share."""

    replies: list[dict[str, Any]] | Exception
    row_tokens: list[int]  # of each packed row that was run


def answer_batches(trained: Trained, threshold: float, connection: Connection) -> None:
    """Answer each `Asked` that comes with a `Batch`, until the other end is closed.

    On a CPU each thread has a row of its own, where there are two questions for each: threads that
    share a row wait for each other after every kernel, and for whoever else wants a core.
    """
    threads = torch.get_num_threads() if trained.forward.device.type == "cpu" else 1
    one_thread = {"initializer": torch.set_num_threads, "initargs": (1,)}
    with ThreadPoolExecutor(threads, **one_thread) as pool, contextlib.suppress(EOFError, OSError):
        while True:
            asked = connection.recv()
            if asked is STOP:  # the batch was done already
                continue
            together = threads > 1 and len(asked) >= 2 * threads
            spread = (threads, pool.map) if together else (1, map)
            connection.send(answer_batch(trained, threshold, asked, connection.poll, *spread))


def answer_batch(
    trained: Trained,
    threshold: float,
    asked: Asked,
    stopped: Callable[[], bool],
    rows: int,
    run_all: Callable[..., Iterable[Any]],
) -> Batch:
    """The last two: of `answer_together`. Its error is Stopped or UserError, or has a traceback.

    The rows that begin at once are not worth a look at the connection.
    """
    row_tokens: list[int] = []

    def go_on(tokens: int) -> bool:
        row_tokens.append(tokens)
        return len(row_tokens) <= rows or not stopped()

    try:
        answered = answer_together(trained, asked, threshold, go_on, rows, run_all)
        found = replies([question for question, _ in asked], answered, threshold)
    except (Stopped, UserError) as error:
        return Batch(error, row_tokens)
    except Exception:
        return Batch(RuntimeError(traceback.format_exc()), row_tokens)
    return Batch(found, row_tokens)
