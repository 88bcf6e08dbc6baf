"""Weights and optimizer of a sharded model as safetensors: each rank writes its shards, any layout
loads them.

torch's distributed checkpoint in the format of Hugging Face: a file of each rank, which says of
every tensor where its shard begins. No pickles.

What is saved is first copied to CPU memory, whose pages are used again for the next checkpoint: so
training waits for a copy instead of a disk. The price is as much memory as a rank's shards take,
and as much again while safetensors makes the file.
"""

import math
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.staging import BlockingAsyncStager
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict
from torch.optim import Optimizer

from detalbert.engine.gradients import local_part
from detalbert.engine.safe_load import check_finite_weights
from detalbert.errors import UserError, as_user_error, first_line

# Weights by their names after "model.", moments of the optimizer after "optimizer.".
State = dict[str, Tensor]


def live_state(model: nn.Module, optimizer: Optimizer | None) -> State:
    """Return the tensors of a model and its optimizer, not copies, sharded as they are. An
    optimizer that has taken no step gets its moments.
    """
    state: State = {}
    weights = cast(State, get_model_state_dict(model))
    for name, weight in weights.items():
        state[f"model.{name}"] = weight
    if optimizer is None:
        return state

    optimizer_state = get_optimizer_state_dict(model, optimizer)
    moments = cast(dict[str, State], optimizer_state["state"])
    for name, values in moments.items():
        for key, value in values.items():
            # Parts are read of tensors with a dimension; a count of steps has none.
            if value.ndim == 0:
                value = value.reshape(1)
            state[f"optimizer.{name}.{key}"] = value
    return state


class TensorSaver:
    """Copies weights and optimizer to CPU memory, which is reused; another thread may write it.
    `group` has all ranks, for CPU tensors; it must not be used otherwise meanwhile.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.group = group
        self._copy: State = {}

    @torch.no_grad()
    def save(self, path: Path, model: nn.Module, optimizer: Optimizer) -> Callable[[], None]:
        """Copy the current state; return a function that writes it, before the next copy. It raises
        RuntimeError if a rank's disk is full.
        """
        # Of an optimizer without state torch would make one, and count a step.
        state = live_state(model, optimizer if optimizer.state else None)
        # The first copy allocates, as does that after the first step, which has moments too.
        if self._copy.keys() != state.keys():
            self._copy = BlockingAsyncStager().stage(state)
        else:
            for name, value in state.items():
                copy = local_part(self._copy[name])
                copy.copy_(local_part(value))

        def write() -> None:
            writer = dcp.HuggingFaceStorageWriter(str(path), save_distributed=True)
            # The copy is on the CPU. To copy ahead torch would ask for a stream on GPU 0, which is
            # this thread's, and so each rank would take memory there.
            writer.per_thread_copy_ahead = 0
            try:
                dcp.save(self._copy, storage_writer=writer, process_group=self.group)
            except CheckpointException as error:  # no Exception: nobody else would catch it
                failure = _first_failure(error)
                raise RuntimeError(first_line(failure)) from None

        return write


def load_tensors(path: Path, model: nn.Module, optimizer: Optimizer | None) -> None:
    """Load what a `TensorSaver` wrote, with any layout, in place.

    Args:
        path: the checkpoint.
        model: sharded or not.
        optimizer: of the model, with or without state; None: only the weights are loaded.

    Raises:
        UserError: weights are of another model, or files are damaged.
    """
    _read(path, live_state(model, optimizer))


def read_sharded_weights(path: Path, into: Mapping[str, Tensor]) -> None:
    """Fill tensors with the weights of their names in this process alone, without a group. Raises
    UserError if weights are missing, not finite or have another shape.
    """
    state = {f"model.{name}": tensor for name, tensor in into.items()}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is")  # ... not initialized
        _read(path, state, no_dist=True)
    check_finite_weights(str(path), into.items())


def _read(path: Path, state: State, no_dist: bool = False) -> None:
    """Fill tensors from a checkpoint; `no_dist`: in this process alone."""
    reader = dcp.HuggingFaceStorageReader(str(path))
    # Once before torch does: of a damaged file it would print more than the line that it raises.
    with as_user_error(partial(_misfit, path)):
        table = reader.read_metadata()
        _check_names(table.state_dict_metadata, state)
    try:
        dcp.load(state, storage_reader=reader, no_dist=no_dist)
    except CheckpointException as error:
        raise _misfit(path, _first_failure(error)) from None


def _check_names(saved: Mapping[str, object], state: State) -> None:
    """Raise ValueError unless the files have all of each tensor, and no other weights: torch would
    leave the rest as it is.
    """
    for name in saved:
        is_weight = name.startswith("model.")
        if is_weight and name not in state:
            raise ValueError(f"{name} is not of this model")
    for name, tensor in state.items():
        if name not in saved:
            raise ValueError(f"{name} is missing")
        # Shards do not overlap, so as many numbers as the tensor has are all of it.
        entry = cast(TensorStorageMetadata, saved[name])
        numbers = sum(math.prod(chunk.sizes) for chunk in entry.chunks)
        if numbers != tensor.numel():
            raise ValueError(f"{name} is not whole, or of another size")


def _first_failure(error: CheckpointException) -> BaseException:
    """Return the error of the first rank that had one."""
    failure, _ = next(iter(error.failures.values()))
    return failure


def _misfit(path: Path, error: BaseException) -> UserError:
    return UserError(f"does not fit: {first_line(error)}", key=str(path))
