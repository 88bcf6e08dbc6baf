"""Weights and optimizer of a model that is split over processes, as files: each has its own part.

torch's distributed checkpoint: files named by rank, `__1_0.distcp` of rank 1, and a table of what
is where, so another number of processes can read them.
"""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint import state_dict as parts
from torch.distributed.checkpoint.api import CheckpointException
from torch.optim import Optimizer

from detalbert.errors import UserError, first_line

TABLE = ".metadata"
# What the table is made of, where the files hold tensors alone.
_METADATA = "torch.distributed.checkpoint.metadata"
_KNOWN = {
    *((_METADATA, name) for name in ("Metadata", "TensorStorageMetadata", "ChunkStorageMetadata",
      "TensorProperties", "MetadataIndex", "StorageMeta", "_MEM_FORMAT_ENCODING")),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch.serialization", "_get_layout"), ("torch", "Size"), ("pathlib", "PosixPath"),
    ("pathlib._local", "PosixPath"),
    *(("torch", name) for name in ("float32", "bfloat16", "float16", "int64", "uint8", "bool")),
}  # fmt: skip


def save_tensors(
    path: Path, model: nn.Module, optimizer: Optimizer, group: dist.ProcessGroup | None = None
) -> Callable[[], None]:
    """Copy weights and, after a step, the optimizer's state; write the copy in another thread.

    Tensors alone: of anything else torch would unpickle what it reads.

    Args: group: of all processes, for tensors on the host; nobody else may use it meanwhile.
    Returns: waits for the files; raises RuntimeError for a full disk, of any process.
    """
    tensors = {"model": parts.get_model_state_dict(model)}
    if optimizer.state:  # else torch would make one, and count a step
        tensors["optimizer"] = parts.get_optimizer_state_dict(model, optimizer)["state"]
    writer = dcp.FileSystemWriter(path)
    written = dcp.async_save(tensors, storage_writer=writer, process_group=group)

    def wait() -> None:
        try:
            written.result()
        except CheckpointException as error:  # no Exception: nobody else would catch it
            failure, _ = next(iter(error.failures.values()))
            raise RuntimeError(first_line(failure)) from None

    return wait


def load_tensors(path: Path, model: nn.Module, optimizer: Optimizer | None) -> None:
    """What `save_tensors` wrote, at any layout; without `optimizer`, the weights.

    Raises UserError for weights of another model.
    """
    wanted, whole = _wanted(model, optimizer)
    reader = _Reader(path)
    reader.read_metadata()  # here, for torch would print more than the line that it raises
    try:
        dcp.load(wanted, storage_reader=reader)
    except CheckpointException as error:
        failure, _ = next(iter(error.failures.values()))
        raise _misfit(path, failure) from None
    parts.set_model_state_dict(model, wanted["model"])
    if optimizer is not None:
        parts.set_optimizer_state_dict(model, optimizer, whole)


def files_needed(path: Path, model: nn.Module, optimizer: Optimizer | None) -> set[str]:
    """The files that `load_tensors` reads on this process, by the table of `path`."""
    table = _Reader(path).read_metadata()
    planner = dcp.DefaultLoadPlanner()
    try:
        planner.set_up_planner(_wanted(model, optimizer)[0], table)
        items = planner.create_local_plan().items
    except (RuntimeError, ValueError, KeyError) as error:
        raise _misfit(path, error) from None
    return {table.storage_data[item.storage_index].relative_path for item in items}


def _wanted(model: nn.Module, optimizer: Optimizer | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Tensors to read into, and the optimizer's whole state, of which they are a part."""
    wanted: dict[str, Any] = {"model": parts.get_model_state_dict(model)}
    whole: dict[str, Any] = {}
    if optimizer is not None:
        whole = parts.get_optimizer_state_dict(model, optimizer)
        wanted["optimizer"] = whole["state"]
    return wanted, whole


def _misfit(path: Path, error: BaseException) -> UserError:
    return UserError(f"{path}: does not fit: {first_line(error)}")


class _Reader(dcp.FileSystemReader):
    """Reads the table of a checkpoint without running what it may hold: torch unpickles it."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Any:
        path = self._get_metadata_path(kwargs.get("rank"))

        class Plain(pickle.Unpickler):
            def find_class(self, module: str, name: str) -> Any:
                if (module, name) not in _KNOWN:
                    held = f"{module}.{name}"
                    raise UserError(f"{path}: not loaded, for it holds more than tensors: {held}")
                return super().find_class(module, name)

        with self.fs.create_stream(path, "rb") as file:
            metadata = Plain(file).load()
        metadata.storage_meta = metadata.storage_meta or dcp.StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata
