"""Loaders of packed rows, for training and validation.

Worker processes pack rows ahead of the step. A batch is sent as NumPy arrays, pickled: torch makes
a file of shared memory per tensor, 36 in a fine-tuning step at 1 ms each. The price is a copy.
"""

import atexit
import contextlib
import functools
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from detalbert.engine.rows import PackableWindows, Row, convert_row, pack_rows
from detalbert.errors import Unavailable, UserError, first_line
from detalbert.processes import CHILDREN

_deaths: list[Unavailable] = []  # of worker processes of this process


class PickledRows:
    """A batch (list of rows) from a worker process, its tensors as arrays."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self.contents = [convert_row(row, kind=Tensor, change=Tensor.numpy) for row in rows]

    def rows(self) -> list[Row]:
        return [convert_row(row, kind=np.ndarray, change=torch.from_numpy) for row in self.contents]

    def pin_memory(self) -> list[Row]:
        """Return the rows in page-locked memory; torch's loader calls it if `pin_memory` is set."""
        return [convert_row(row, kind=Tensor, change=Tensor.pin_memory) for row in self.rows()]


@dataclass(eq=False)
class _SendingErrors(Dataset):
    """A data set whose item is the UserError that making it raised.

    A worker process sends it as it is; torch would send its class and its traceback as text.
    """

    dataset: Dataset

    def __getitem__(self, index: object) -> object:
        try:
            return self.dataset[index]
        except UserError as error:
            return error


def _pickled(batch: list[Row] | UserError) -> PickledRows | UserError:
    """Return a batch as it is sent from a worker process."""
    return batch if isinstance(batch, UserError) else PickledRows(batch)


class RowLoader(DataLoader):
    """Loader of the items of a data set, each a list of rows.

    Args:
        dataset: packs the rows of an item.
        sampler: what the data set is indexed by, one for each item.
        num_workers: processes that make items ahead; 0: the main process makes them.
        pin_memory: whether rows are in page-locked memory, for a GPU.
    """

    def __init__(
        self,
        dataset: Dataset,
        sampler: Iterable[object],
        num_workers: int = 0,
        pin_memory: bool = False,
    ) -> None:
        super().__init__(
            _SendingErrors(dataset) if num_workers else dataset,
            sampler=sampler,
            batch_size=None,  # an item is a whole batch; the data set packs it
            collate_fn=_pickled if num_workers else list,
            num_workers=num_workers,
            pin_memory=pin_memory,
            prefetch_factor=4 if num_workers else None,
            # They end with the run: torch's own loop, when its parent dies, blocks until somebody
            # drains its queue. Elsewhere than on Linux forks are unsafe.
            multiprocessing_context=CHILDREN if num_workers and sys.platform == "linux" else None,
        )

    def __iter__(self) -> Any:  # an Iterator[list[Row]]; torch's annotation is its own class
        """Yield the rows of each batch; raise the error of a worker."""
        batches = super().__iter__()
        if self.num_workers:
            _watch_workers()
        deaths_before = len(_deaths)
        with _worker_errors():
            for batch in batches:
                if isinstance(batch, UserError):
                    raise batch
                yield batch.rows() if isinstance(batch, PickledRows) else batch
                # The signal's own error may have been lost, and torch would wait without an end for
                # the rest of a batch that the killed process had begun to send.
                if len(_deaths) > deaths_before:
                    raise _deaths[-1]


class LazyLoader(DataLoader):
    """Loader whose actual loader is created by `make` when the first batch is requested.

    Determined requests loaders before it reads the checkpoint that determines how rows are packed.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        super().__init__([])  # type: ignore[arg-type]  # Determined wants a DataLoader
        self.make = make

    def __len__(self) -> int:
        return len(self.make())

    def __iter__(self) -> Any:  # as RowLoader's
        yield from self.make()


@functools.cache
def _watch_workers() -> None:
    """Make torch's handler for the death of a worker process raise Unavailable. Its error may
    surface anywhere in this process, also where a RuntimeError has another meaning.
    """
    torch_handler: Any = signal.getsignal(signal.SIGCHLD)

    def handle(*signal_and_frame: object) -> None:
        try:
            with _worker_errors():
                torch_handler(*signal_and_frame)
        except Unavailable as death:
            _deaths.append(death)
            raise

    signal.signal(signal.SIGCHLD, handle)
    atexit.register(signal.signal, signal.SIGCHLD, signal.SIG_DFL)  # multiprocessing ends the rest


@contextlib.contextmanager
def _worker_errors() -> Iterator[None]:
    """Raise Unavailable if a worker process was killed."""
    try:
        yield
    except RuntimeError as error:
        if "DataLoader worker" not in str(error):
            raise
        if isinstance(error.__cause__, Unavailable):  # of the handler above, and it says more
            raise error.__cause__ from None
        raise Unavailable(
            f"a loader process was killed, perhaps for memory ({first_line(error)})",
            cure="lower hyperparameters.num_workers, then run the same command to resume",
        ) from None


@dataclass(eq=False)
class PackedRows(Dataset):
    """Data set indexed by arrays of windows (`pack_rows`), with lists of packed rows as items."""

    windows: PackableWindows
    max_tokens: int
    padded: bool = False

    def __getitem__(self, share: np.ndarray) -> list[Any]:
        return pack_rows(self.windows, share, max_tokens=self.max_tokens, padded=self.padded)


def validation_loader(
    rows: Dataset,
    shares: Sequence[np.ndarray],
    slots: int,
    slot: int,
    num_workers: int = 0,
) -> RowLoader:
    """Return the loader of a rank's validation rows.

    Rows do not depend on the number of ranks, so neither do the logits. A rank without rows gets
    one empty batch, because Determined refuses an empty loader.

    Args:
        rows: packs the rows of a share.
        shares: window numbers of each row, of `validation_rows`.
        slots: number of ranks.
        slot: the rank; row i goes to rank i mod `slots`.
        num_workers: see RowLoader.
    """
    # Neighbouring rows are of like lengths: dealt in turn, ranks get nearly the same work.
    rank_shares = shares[slot::slots] or [np.empty(0, np.int64)]
    return RowLoader(rows, rank_shares, num_workers=num_workers)
