"""Worker processes of a corpus, which are forks: what they share is not sent to them."""

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, TypeVar

from detalbert.errors import Unavailable
from detalbert.processes import CHILDREN

Result = TypeVar("Result")
_work: Callable[[Any], Any]  # of the workers


def map_in_processes(
    folder: Path, work: Callable[[Any], Result], batches: Iterable[Any], processes: int
) -> Generator[Result, None, None]:
    """Yield `work` of each batch, in order, with at most two batches per process in memory.

    Args:
        folder: where token shards are written, for the error of a killed worker.
        processes: with one at most, this process does the work.
    """
    global _work
    if processes <= 1:
        yield from map(work, batches)
        return
    _work = work
    results: deque[Any] = deque()
    one_thread = {"TOKENIZERS_PARALLELISM": "false"}  # the cores have a worker each
    try:
        with ProcessPoolExecutor(processes, CHILDREN, os.environ.update, (one_thread,)) as pool:
            for batch in batches:
                results.append(pool.submit(_run_worker, batch))
                if len(results) > 2 * processes:
                    first = results.popleft()
                    yield first.result()
            while results:
                first = results.popleft()
                yield first.result()
    except BrokenProcessPool:
        problem = "a writer of token shards was killed, perhaps for memory"
        raise Unavailable(f"{folder}: {problem}; run the same command again") from None


def _run_worker(batch: Any) -> Any:
    return _work(batch)
