"""Checkpoints of a model that is split over processes: each writes and reads its own parts.

Weights and the optimizer's state are torch's distributed checkpoint: files named by rank, and a
table of what is where, so another number of processes can read them. The rest is `state.json`.
"""

import json
import pickle
from pathlib import Path
from typing import Any

import torch
from determined import pytorch
from torch import nn
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint import state_dict as parts
from torch.distributed.checkpoint.api import CheckpointException
from torch.optim import Optimizer

from detalbert.errors import UserError, first_line
from detalbert.training.local import LocalController, copy_modules

STATE = "state.json"
# What the table of a distributed checkpoint is made of, where it holds tensors alone.
_METADATA = "torch.distributed.checkpoint.metadata"
_TABLE = {
    *((_METADATA, name) for name in ("Metadata", "TensorStorageMetadata", "ChunkStorageMetadata",
      "TensorProperties", "MetadataIndex", "StorageMeta", "_MEM_FORMAT_ENCODING")),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch.serialization", "_get_layout"), ("torch", "Size"), ("pathlib", "PosixPath"),
    ("pathlib._local", "PosixPath"),
    *(("torch", name) for name in ("float32", "bfloat16", "float16", "int64", "uint8", "bool")),
}  # fmt: skip


class ShardedController(LocalController):
    """The trial loop of a sharded model: every process takes part in each checkpoint."""

    def _checkpoint(self, already_exiting: bool) -> None:
        """As Determined's, whose chief writes alone."""
        if self.is_chief:
            self.core_context.train.set_status("checkpointing")
        self.state.last_ckpt = steps = self.state.batches_trained
        metadata = {"steps_completed": steps, "framework": f"torch-{torch.__version__}"}
        metadata["format"] = "torch.distributed.checkpoint"
        with self.context._core.checkpoint.store_together(metadata) as (path, name):
            self._save(path)
        for callback in self.callbacks.values():
            callback.on_checkpoint_upload_end(uuid=name)

    def _save(self, path: Path) -> None:
        (model,), (optimizer,) = self.context.models, self.context.optimizers
        save_tensors(path, model, optimizer)
        if not self.is_chief:
            return
        copy_modules(path, on_cluster=False)
        state = {
            "trial": vars(self.state),
            "stepped": bool(optimizer.state),
            "rates": [group["lr"] for group in optimizer.param_groups],
            "schedulers": [each.state_dict() for each in self.context.lr_schedulers],
            "callbacks": {name: each.state_dict() for name, each in self.callbacks.items()},
            "scaler": self.context._scaler.state_dict() if self.context._scaler else {},
        }
        (path / STATE).write_text(json.dumps(state, indent=1))
        for callback in self.callbacks.values():
            callback.on_checkpoint_write_end(str(path))

    def _load(self, load_path: Path) -> None:
        """All of a run for its restart; of another trial's checkpoint, the weights."""
        state = _read_state(load_path)
        mine = self.trial.handover.goes_on(state["callbacks"].get("handover") or {})
        (model,), (optimizer,) = self.context.models, self.context.optimizers
        load_tensors(load_path, model, optimizer if mine and state["stepped"] else None)
        self.state = pytorch._TrialState(trial_id=self.trial_id)
        if not mine:
            return
        for group, rate in zip(optimizer.param_groups, state["rates"], strict=True):
            group["lr"] = rate
        for scheduler, kept in zip(self.context.lr_schedulers, state["schedulers"], strict=True):
            scheduler.load_state_dict(kept)
        if self.context._scaler and state["scaler"]:
            self.context._scaler.load_state_dict(state["scaler"])
        self._load_state(state["trial"])


def save_tensors(path: Path, model: nn.Module, optimizer: Optimizer) -> None:
    """Weights and, after a step, the optimizer's state. Raises RuntimeError for a full disk.

    Tensors alone: of anything else torch would unpickle what it reads.
    """
    tensors = {"model": parts.get_model_state_dict(model)}
    if optimizer.state:  # else torch would make one, and count a step
        tensors["optimizer"] = parts.get_optimizer_state_dict(model, optimizer)["state"]
    try:
        dcp.save(tensors, checkpoint_id=path)
    except CheckpointException as error:  # no Exception: nobody else would catch it
        failure, _ = next(iter(error.failures.values()))
        raise RuntimeError(first_line(failure)) from None


def load_tensors(path: Path, model: nn.Module, optimizer: Optimizer | None) -> None:
    """What `save_tensors` wrote, at any layout; without `optimizer`, the weights.

    Raises UserError for weights of another model.
    """
    wanted: dict[str, Any] = {"model": parts.get_model_state_dict(model)}
    if optimizer is not None:
        whole = parts.get_optimizer_state_dict(model, optimizer)
        wanted["optimizer"] = whole["state"]
    reader = _Reader(path)
    reader.read_metadata()  # here, for torch would print more than the line that it raises
    try:
        dcp.load(wanted, storage_reader=reader)
    except CheckpointException as error:
        failure, _ = next(iter(error.failures.values()))
        raise UserError(f"{path}: does not fit: {first_line(failure)}") from None
    parts.set_model_state_dict(model, wanted["model"])
    if optimizer is not None:
        parts.set_optimizer_state_dict(model, optimizer, whole)


def _read_state(path: Path) -> dict[str, Any]:
    try:
        return json.loads((path / STATE).read_text())
    except FileNotFoundError:
        raise UserError(f"{path}: no checkpoint of a sharded model; give another") from None


class _Reader(dcp.FileSystemReader):
    """Reads the table of a checkpoint without running what it may hold: torch unpickles it."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Any:
        path = self._get_metadata_path(kwargs.get("rank"))

        class Plain(pickle.Unpickler):
            def find_class(self, module: str, name: str) -> Any:
                if (module, name) not in _TABLE:
                    held = f"{module}.{name}"
                    raise UserError(f"{path}: not loaded, for it holds more than tensors: {held}")
                return super().find_class(module, name)

        with self.fs.create_stream(path, "rb") as file:
            metadata = Plain(file).load()
        metadata.storage_meta = metadata.storage_meta or dcp.StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata
