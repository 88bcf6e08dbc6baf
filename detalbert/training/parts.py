"""Weights and optimizer of a sharded model as files: each rank writes its shards.

torch's distributed checkpoint: files named by rank, `__1_0.distcp` of rank 1, and a table of their
contents (table.py), for any number of ranks to read them. The optimizer's step counts have a file
of their own: torch would spread them over all files, and each rank would have to read all.
"""

import json
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint import state_dict as parts
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.staging import BlockingAsyncStager
from torch.distributed.checkpoint.storage import WriteResult
from torch.optim import Optimizer

from detalbert.engine.finite import check_finite_weights
from detalbert.engine.gradients import local_part
from detalbert.errors import UserError, as_user_error, first_line
from detalbert.training.table import read_table, write_table

NUMBERS = "numbers.json"


class TensorSaver:
    """Copies weights and optimizer to CPU memory, which is reused; another thread may write it.
    `group` has all ranks, for CPU tensors; it must not be used otherwise meanwhile.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.group = group
        self._copy: dict[str, Any] = {}

    def save(self, path: Path, model: nn.Module, optimizer: Optimizer) -> Callable[[], None]:
        """Copy the current state; return a function that writes it, before the next copy. It raises
        RuntimeError if a rank's disk is full.
        """
        # Of an optimizer without state torch would make one, and count a step.
        tensors, numbers, _ = _split(model, optimizer if optimizer.state else None)
        if dist.get_rank() == 0:
            values = {n: {k: v.item() for k, v in kept.items()} for n, kept in numbers.items()}
            (path / NUMBERS).write_text(json.dumps(values))
        if self._copy.keys() != tensors.keys():
            self._copy = BlockingAsyncStager().stage(tensors)
        else:
            _copy_over(self._copy, tensors)

        def write() -> None:
            try:
                # The copy is on the CPU. To copy ahead torch would ask for a stream on GPU 0,
                # which is this thread's, and so each rank would take memory there.
                writer = _Writer(path, per_thread_copy_ahead=0)
                dcp.save(self._copy, storage_writer=writer, process_group=self.group)
            except CheckpointException as error:  # no Exception: nobody else would catch it
                failure, _ = next(iter(error.failures.values()))
                raise RuntimeError(first_line(failure)) from None

        return write


class _Writer(dcp.FileSystemWriter):
    """Writer that writes as data the table that torch would pickle."""

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        metadata.storage_data = {one.index: one.storage_data for each in results for one in each}
        write_table(Path(self.path), metadata)


@torch.no_grad()
def _copy_over(copy: dict[str, Any], tensors: dict[str, Any]) -> None:
    for name, value in tensors.items():
        if isinstance(value, dict):
            _copy_over(copy[name], value)
        else:
            local_part(copy[name]).copy_(local_part(value))


def load_tensors(path: Path, model: nn.Module, optimizer: Optimizer | None) -> None:
    """Load what a `TensorSaver` wrote, with any layout; without `optimizer`, only the weights.
    Raises UserError if weights are of another model, or files are damaged.
    """
    wanted, numbers, whole = _split(model, optimizer)
    if optimizer is not None:
        _fill_numbers(path / NUMBERS, numbers)
    _read(path, wanted)
    parts.set_model_state_dict(model, wanted["model"])
    if optimizer is not None:
        parts.set_optimizer_state_dict(model, optimizer, whole)


def _fill_numbers(path: Path, numbers: dict[str, dict[str, torch.Tensor]]) -> None:
    with as_user_error(partial(_misfit, path)):
        saved = json.loads(path.read_text())
        if {n: set(kept) for n, kept in saved.items()} != {n: set(k) for n, k in numbers.items()}:
            raise ValueError("its names are not those of this model")
        for name, kept in saved.items():
            for key, value in kept.items():
                numbers[name][key].fill_(value)


def read_sharded_weights(path: Path, into: dict[str, torch.Tensor]) -> None:
    """Fill tensors with the weights of their names in this process alone, without a group. Raises
    UserError if weights are missing, not finite or have another shape.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is")  # ... not initialized
        _read(path, {"model": into}, no_dist=True)
    check_finite_weights(str(path), into.items())


def _read(path: Path, wanted: dict[str, Any], **how: Any) -> None:
    reader = Reader(path)
    reader.read_metadata()  # here, for torch would print more than the line that it raises
    try:
        dcp.load(wanted, storage_reader=reader, **how)
    except CheckpointException as error:
        failure, _ = next(iter(error.failures.values()))
        raise _misfit(path, failure) from None


def files_needed(path: Path, model: nn.Module, optimizer: Optimizer | None) -> set[str]:
    """Return the files that `load_tensors` reads on this rank, by the table of `path`."""
    table, (wanted, *_) = read_table(path), _split(model, optimizer)
    planner = dcp.DefaultLoadPlanner()
    with as_user_error(partial(_misfit, path)):
        planner.set_up_planner(wanted, table)
        items = planner.create_local_plan().items
    return {table.storage_data[item.storage_index].relative_path for item in items}


def _split(model: nn.Module, optimizer: Optimizer | None) -> tuple[dict[str, Any], Any, Any]:
    """Return the tensors of model and optimizer that are saved in parts; the optimizer's scalars,
    by name; its state as torch has it. All are its own, or new ones if it has taken no step.
    """
    tensors: dict[str, Any] = {"model": parts.get_model_state_dict(model)}
    if optimizer is None:
        return tensors, {}, None
    whole: Any = parts.get_optimizer_state_dict(model, optimizer)
    state = whole["state"].items()
    tensors["optimizer"] = {n: {k: v for k, v in kept.items() if v.ndim} for n, kept in state}
    numbers = {name: {k: v for k, v in kept.items() if not v.ndim} for name, kept in state}
    return tensors, numbers, whole


def _misfit(path: Path, error: BaseException) -> UserError:
    return UserError(f"{path}: does not fit: {first_line(error)}")


class Reader(dcp.FileSystemReader):
    """Reader of a checkpoint by the table of table.py, where torch would unpickle one."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        found = read_table(Path(self.path))
        found.storage_meta = StorageMeta(load_id=self.load_id)
        return found
