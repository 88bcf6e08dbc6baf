"""Worker processes of a corpus, which are forks: what they share is not sent to them."""

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from detalbert.errors import Unavailable
from detalbert.processes import CHILDREN

_work: Callable[[Any], Any]  # of a worker process


def map_in_processes(
    work: Callable[[Any], Any], tasks: Iterable[Any], processes: int
) -> Generator[Any, None, None]:
    """Yield `work` of each task, in order, with at most two tasks per process in memory.

    Args:
        work: the function; a fork has it, so it may be any.
        tasks: made in this process, while the others work.
        processes: with one at most, this process does the work.

    Raises:
        Unavailable: a worker was killed.
    """
    if processes <= 1:
        yield from map(work, tasks)
        return
    results: deque[Future[Any]] = deque()
    try:
        with ProcessPoolExecutor(processes, CHILDREN, _start, (work,)) as pool:
            for task in tasks:
                results.append(pool.submit(_run, task))
                if len(results) > 2 * processes:
                    yield results.popleft().result()
            while results:
                yield results.popleft().result()
    except BrokenProcessPool:
        problem = "a process that tokenizes was killed, perhaps for memory"
        raise Unavailable(problem, cure="run the same command again") from None


def _start(work: Callable[[Any], Any]) -> None:
    """Keep the function in a new worker process, which has a core: the tokenizer starts none."""
    global _work
    _work = work
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


def _run(task: Any) -> Any:
    return _work(task)
