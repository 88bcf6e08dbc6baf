"""Weights and optimizer of a sharded model as files: each rank writes its shards.

torch's distributed checkpoint: files named by rank, `__1_0.distcp` of rank 1, and a table of their
contents (table.py), for any number of ranks to read them. The optimizer's step counts have a file
of their own: torch would spread them over all files, and each rank would have to read all.

What is saved is first copied to CPU memory, whose pages are used again for the next checkpoint: as
much memory as a rank's shards take, and training waits for a copy instead of a disk.
"""

import json
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint import state_dict as parts
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.staging import BlockingAsyncStager
from torch.distributed.checkpoint.state_dict import OptimizerStateType
from torch.distributed.checkpoint.storage import WriteResult
from torch.optim import Optimizer

from detalbert.engine.finite import check_finite_weights
from detalbert.engine.gradients import local_part
from detalbert.errors import UserError, as_user_error, first_line
from detalbert.training.table import read_table, write_table

NUMBERS = "numbers.json"
# Of each parameter, state of the optimizer by its name, such as `exp_avg`.
Moments = dict[str, dict[str, Tensor]]
# "model", with weights by name, and "optimizer", with Moments: nested, as torch saves them.
Tensors = dict[str, Any]


class SplitState(NamedTuple):
    """State of a model and its optimizer, as it is stored."""

    tensors: Tensors  # saved in parts
    numbers: Moments  # the optimizer's scalars, in a file of their own
    optimizer: OptimizerStateType | None  # its whole state as torch has it; None without one


class TensorSaver:
    """Copies weights and optimizer to CPU memory, which is reused; another thread may write it.
    `group` has all ranks, for CPU tensors; it must not be used otherwise meanwhile.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.group = group
        self._copy: Tensors = {}

    def save(self, path: Path, model: nn.Module, optimizer: Optimizer) -> Callable[[], None]:
        """Copy the current state; return a function that writes it, before the next copy. It raises
        RuntimeError if a rank's disk is full.
        """
        # Of an optimizer without state torch would make one, and count a step.
        state = _split(model, optimizer if optimizer.state else None)
        if dist.get_rank() == 0:
            values = {}
            for name, numbers in state.numbers.items():
                values[name] = {key: number.item() for key, number in numbers.items()}
            (path / NUMBERS).write_text(json.dumps(values))

        # The first copy allocates, as does that after the first step, which has moments too.
        if self._copy.keys() != state.tensors.keys():
            self._copy = BlockingAsyncStager().stage(state.tensors)
        else:
            _copy_over(self._copy, tensors=state.tensors)

        def write() -> None:
            try:
                # The copy is on the CPU. To copy ahead torch would ask for a stream on GPU 0,
                # which is this thread's, and so each rank would take memory there.
                writer = _Writer(path, per_thread_copy_ahead=0)
                dcp.save(self._copy, storage_writer=writer, process_group=self.group)
            except CheckpointException as error:  # no Exception: nobody else would catch it
                raise RuntimeError(first_line(_first_failure(error))) from None

        return write


class _Writer(dcp.FileSystemWriter):
    """Writer that writes as data the table that torch would pickle."""

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        places = {}
        for rank_results in results:
            for result in rank_results:
                places[result.index] = result.storage_data
        metadata.storage_data = places
        write_table(Path(self.path), metadata)


@torch.no_grad()
def _copy_over(copy: Tensors, tensors: Tensors) -> None:
    """Copy this rank's shard of each tensor into the one of that name in `copy`."""
    for name, value in tensors.items():
        if isinstance(value, dict):
            _copy_over(copy[name], tensors=value)
        else:
            local_part(copy[name]).copy_(local_part(value))


def load_tensors(path: Path, model: nn.Module, optimizer: Optimizer | None) -> None:
    """Load what a `TensorSaver` wrote, with any layout.

    Args:
        path: the checkpoint.
        model: sharded or not; its weights are replaced.
        optimizer: of the model, with or without state; None: only the weights are loaded.

    Raises:
        UserError: weights are of another model, or files are damaged.
    """
    state = _split(model, optimizer)
    if optimizer is not None:
        _fill_numbers(path / NUMBERS, numbers=state.numbers)
    _read(path, state.tensors)
    parts.set_model_state_dict(model, state.tensors["model"])
    if optimizer is not None and state.optimizer is not None:
        parts.set_optimizer_state_dict(model, optimizer, state.optimizer)


def _fill_numbers(path: Path, numbers: Moments) -> None:
    """Set the optimizer's scalars to those in a checkpoint, which must have the same names."""
    with as_user_error(partial(_misfit, path)):
        saved = json.loads(path.read_text())
        saved_keys = {name: set(values) for name, values in saved.items()}
        own_keys = {name: set(scalars) for name, scalars in numbers.items()}
        if saved_keys != own_keys:
            raise ValueError("its names are not those of this model")
        for name, values in saved.items():
            for key, value in values.items():
                numbers[name][key].fill_(value)


def read_sharded_weights(path: Path, into: dict[str, Tensor]) -> None:
    """Fill tensors with the weights of their names in this process alone, without a group. Raises
    UserError if weights are missing, not finite or have another shape.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is")  # ... not initialized
        _read(path, {"model": into}, no_dist=True)
    check_finite_weights(str(path), into.items())


def _read(path: Path, tensors: Tensors, no_dist: bool = False) -> None:
    """Fill tensors from a checkpoint; `no_dist`: in this process alone."""
    reader = Reader(path)
    # Once before torch does: of a damaged table it would print more than the line that it raises.
    reader.read_metadata()
    try:
        dcp.load(tensors, storage_reader=reader, no_dist=no_dist)
    except CheckpointException as error:
        raise _misfit(path, _first_failure(error)) from None


def _first_failure(error: CheckpointException) -> BaseException:
    """Return the error of the first rank that had one."""
    failure, _ = next(iter(error.failures.values()))
    return failure


def files_needed(path: Path, model: nn.Module, optimizer: Optimizer | None) -> set[str]:
    """Return the files that `load_tensors` reads on this rank, by the table of `path`."""
    table = read_table(path)
    state = _split(model, optimizer)
    # The plan that torch makes when it loads.
    planner = dcp.DefaultLoadPlanner()
    with as_user_error(partial(_misfit, path)):
        planner.set_up_planner(state.tensors, metadata=table)
        items = planner.create_local_plan().items
    return {table.storage_data[item.storage_index].relative_path for item in items}


def _split(model: nn.Module, optimizer: Optimizer | None) -> SplitState:
    """Return the state of model and optimizer: their own tensors, or new ones if the optimizer has
    taken no step.
    """
    tensors: Tensors = {"model": parts.get_model_state_dict(model)}
    if optimizer is None:
        return SplitState(tensors=tensors, numbers={}, optimizer=None)
    state = parts.get_optimizer_state_dict(model, optimizer)

    # The moments have the shape of their parameter, and are sharded as it is; a step count is [].
    moments: Moments = {}
    numbers: Moments = {}
    for name, values in cast(Moments, state["state"]).items():
        moments[name] = {key: value for key, value in values.items() if value.ndim}
        numbers[name] = {key: value for key, value in values.items() if not value.ndim}
    tensors["optimizer"] = moments
    return SplitState(tensors=tensors, numbers=numbers, optimizer=state)


def _misfit(path: Path, error: BaseException) -> UserError:
    return UserError(f"does not fit: {first_line(error)}", key=str(path))


class Reader(dcp.FileSystemReader):
    """Reader of a checkpoint by the table of table.py, where torch would unpickle one."""

    def read_metadata(self, *args: object, **kwargs: object) -> Metadata:
        table = read_table(Path(self.path))
        table.storage_meta = StorageMeta(load_id=self.load_id)
        return table
