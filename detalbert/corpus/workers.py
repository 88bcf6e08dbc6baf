"""Worker processes of a corpus, which are forks: what they share is not sent to them."""

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, TypeVar

from detalbert.errors import Unavailable
from detalbert.processes import CHILDREN

Task = TypeVar("Task")
Result = TypeVar("Result")
_work: Callable[[Any], Any]  # of a worker process


def map_in_processes(
    folder: Path, work: Callable[[Task], Result], batches: Iterable[Task], processes: int
) -> Generator[Result, None, None]:
    """Yield `work` of each batch, in order, with at most two batches per process in memory.

    Args:
        folder: where token shards are written, for the error of a killed worker.
        work: the function; a fork has it, so it may be any.
        batches: read in this process, while the others work.
        processes: with one at most, this process does the work.

    Raises:
        Unavailable: a worker was killed.
    """
    if processes <= 1:
        yield from map(work, batches)
        return
    results: deque[Future[Result]] = deque()
    try:
        with ProcessPoolExecutor(
            processes,
            mp_context=CHILDREN,
            initializer=_start_worker,
            initargs=(work,),
        ) as pool:
            for batch in batches:
                results.append(pool.submit(_run_worker, batch))
                if len(results) > 2 * processes:
                    yield results.popleft().result()
            while results:
                yield results.popleft().result()
    except BrokenProcessPool:
        raise Unavailable(
            "a writer of token shards was killed, perhaps for memory",
            key=str(folder),
            cure="run the same command again",
        ) from None


def _start_worker(work: Callable[[Any], Any]) -> None:
    """Keep the function in a new worker process, which has a core: the tokenizer starts none."""
    global _work
    _work = work
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


def _run_worker(batch: Any) -> Any:
    return _work(batch)
