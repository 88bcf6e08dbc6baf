"""Loaders of packed rows, for training and validation."""

import atexit
import contextlib
import functools
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from detalbert.engine.rows import Row, convert_row, pack_rows
from detalbert.errors import Unavailable, UserError, first_line
from detalbert.processes import CHILDREN, count_cores


class Parcel:
    """A batch (list of rows) from a worker process, its tensors as arrays.

    An array is pickled; for each tensor torch makes a file of shared memory, which takes about
    1 ms, and a fine-tuning step has 36.
    """

    def __init__(self, rows: Iterable[Row]) -> None:
        self.contents = [convert_row(row, Tensor, Tensor.numpy) for row in rows]

    def rows(self) -> list[Any]:
        return [convert_row(row, np.ndarray, torch.from_numpy) for row in self.contents]

    def pin_memory(self) -> list[Any]:
        """Return the rows in page-locked memory; torch's loader calls it if `pin_memory` is set."""
        return [convert_row(row, Tensor, Tensor.pin_memory) for row in self.rows()]


class _SendingErrors(Dataset):
    """A data set whose item is the UserError that making it raised.

    A worker process sends it as it is; torch would send its class and its traceback as text.
    """

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset

    def __getitem__(self, index: Any) -> Any:
        try:
            return self.dataset[index]
        except UserError as error:
            return error


def _parcel(item: Any) -> Any:
    """Return a batch as it is sent from a worker process."""
    return item if isinstance(item, UserError) else Parcel(item)


class RowLoader(DataLoader):
    """Loader of the items of `dataset` (lists of rows), one for each item of `sampler`, made by
    `num_workers` processes; 0: the main process.
    """

    def __init__(
        self,
        dataset: Dataset,
        sampler: Iterable[Any],
        num_workers: int = 0,
        pin_memory: bool = False,
    ) -> None:
        super().__init__(
            _SendingErrors(dataset) if num_workers else dataset,
            sampler=sampler,
            batch_size=None,  # an item is a whole batch; the data set packs it
            collate_fn=_parcel if num_workers else list,
            num_workers=num_workers,
            pin_memory=pin_memory,
            prefetch_factor=4 if num_workers else None,
            # They end with the run: torch's own loop, when its parent dies, blocks until somebody
            # drains its queue. Elsewhere than on Linux forks are unsafe.
            multiprocessing_context=CHILDREN if num_workers and sys.platform == "linux" else None,
        )

    def __iter__(self) -> Any:  # an Iterator[list[Row]]; torch's annotation is its own class
        batches = super().__iter__()  # here, so that its processes start before the first batch
        if self.num_workers:
            _watch_workers()
        return _unpacked(batches)


def _unpacked(batches: Iterable[Any]) -> Iterator[list[Row]]:
    with _worker_errors():
        for batch in batches:
            if isinstance(batch, UserError):
                raise batch
            yield batch.rows() if isinstance(batch, Parcel) else batch


class LateLoader(DataLoader):
    """Loader whose actual loader is created by `make` when the first batch is requested.

    Determined requests loaders before it reads the checkpoint that determines how rows are packed.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        super().__init__([])  # type: ignore[arg-type]  # Determined wants a DataLoader
        self.make = make

    def __len__(self) -> int:
        return len(self.make())

    def __iter__(self) -> Any:
        yield from self.make()


@functools.cache
def _watch_workers() -> None:
    """Make torch's handler for the death of a worker process raise Unavailable. Its error may
    surface anywhere in this process, also where a RuntimeError has another meaning.
    """
    torchs: Any = signal.getsignal(signal.SIGCHLD)

    def handle(*signal_and_frame: Any) -> None:
        with _worker_errors():
            torchs(*signal_and_frame)

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


class PackedRows(Dataset):
    """Data set indexed by arrays of windows (`pack_rows`), with lists of packed rows as items."""

    def __init__(self, windows: Any, max_tokens: int, padded: bool = False) -> None:
        self.windows, self.max_tokens, self.padded = windows, max_tokens, padded

    def __getitem__(self, share: np.ndarray) -> list[Any]:
        return pack_rows(self.windows, share, self.max_tokens, self.padded)


def validation_loader(
    rows: PackedRows, shares: list[np.ndarray], slots: int, slot: int, num_workers: int = 0
) -> RowLoader:
    """Return the loader of the validation rows of rank `slot`: row i goes to rank i mod slots.

    Rows (`shares` of `validation_rows`) do not depend on the number of ranks, so neither do the
    logits. A rank without rows gets one empty batch, because Determined refuses an empty loader.
    """
    return RowLoader(rows, shares[slot::slots] or [np.empty(0, np.int64)], num_workers)


def default_workers(processes: int) -> int:
    """Return the loader processes per rank: one less than its cores, at most 4."""
    return min(4, max(0, count_cores() // processes - 1))
