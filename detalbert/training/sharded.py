"""Trial loop of a sharded model: each rank writes and reads its own shards.

A checkpoint is written in the background: training waits only for a copy to CPU memory. Besides the
shards (parts.py) there are `state.json`, of the loop, and, written last, the manifest.
"""

import contextlib
import json
import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from determined import pytorch

from detalbert.errors import UserError, first_line
from detalbert.training.controller import Controller
from detalbert.training.local import copy_modules
from detalbert.training.parts import TensorSaver, files_needed, load_tensors
from detalbert.training.uploads import STATE, Peers, UploadedParts

log = logging.getLogger(__name__)


class ShardedController(Controller):
    """The trial loop of a sharded model: every rank takes part in each checkpoint.

    `context._core.checkpoint` is a `LocalCheckpoints`; on a cluster it becomes `UploadedParts`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        core = self.context._core
        if not self.local_training:
            core.checkpoint = UploadedParts(core.checkpoint, self.needed)
        # A group of its own: what is written beside training must not meet training's messages.
        self._group = dist.new_group(backend="gloo")
        self._tensors = TensorSaver(self._group)
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._writing: Future[None] | None = None
        self._same: bool | None = None  # whether the checkpoint to load is this trial's own

    def _run(self) -> None:
        super()._run()
        began = time.monotonic()
        self._finish()
        if stalls := cast(Any, self.context._core.checkpoint).stalls:
            stalls[-1] += time.monotonic() - began

    def _train_batch(self, *args: Any, **kwargs: Any) -> Any:
        if self._writing is not None and self._writing.done():
            self._finish()
        return super()._train_batch(*args, **kwargs)

    def _finish(self) -> None:
        """Wait for the checkpoint that is being written, if any; raise its error."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def _checkpoint(self, already_exiting: bool) -> None:
        """Start saving a checkpoint from all ranks and write it in the background. Determined's own
        method saves on rank 0 only and blocks.
        """
        began = time.monotonic()
        self._finish()
        if self.is_chief:
            self.core_context.train.set_status("checkpointing")
        assert self.state is not None
        self.trial.check_weights(self.state.batches_trained)
        self.state.last_ckpt = steps = self.state.batches_trained
        metadata = {"steps_completed": steps, "framework": f"torch-{torch.__version__}"}
        metadata["format"] = "torch.distributed.checkpoint"
        store: Any = self.context._core.checkpoint
        with contextlib.ExitStack() as stack:
            kept = store.store_together(metadata, Peers(self._group))
            path, name = stack.enter_context(kept)
            if self.is_chief:
                self._save_state(path)
            (model,), (optimizer,) = self.context.models, self.context.optimizers
            wait = self._tensors.save(path, model, optimizer)
            says = f"checkpoint at step {steps}: {name}"
            self._writing = self._writer.submit(self._write, stack.pop_all(), path, wait, says)
        if already_exiting:
            self._finish()
        store.stalls.append(time.monotonic() - began)

    def _write(
        self, store: contextlib.ExitStack, path: Path, wait: Callable[[], None], says: str
    ) -> None:
        """Write the rest of a checkpoint, in the background."""
        with store:
            wait()
            if self.is_chief:
                copy_modules(path, on_cluster=False)
        if self.is_chief:
            log.info("%s", says)

    def _save_state(self, path: Path) -> None:
        (optimizer,) = self.context.optimizers
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

    def _load(self, load_path: Path) -> None:  # not super's: torch reads parts as tensors
        """Load the whole state for a restart; from another trial's checkpoint, only the weights."""
        state = _read_state(load_path)
        (model,), (optimizer,) = self.context.models, self.context.optimizers
        load_tensors(load_path, model, optimizer if self._wants_all(state) else None)
        self.state = pytorch._TrialState(trial_id=self.trial_id)
        if not self._same:
            return
        for group, rate in zip(optimizer.param_groups, state["rates"], strict=True):
            group["lr"] = rate
        for scheduler, kept in zip(self.context.lr_schedulers, state["schedulers"], strict=True):
            scheduler.load_state_dict(kept)
        if self.context._scaler and state["scaler"]:
            self.context._scaler.load_state_dict(state["scaler"])
        self._load_state(state["trial"])

    def _wants_all(self, state: dict[str, Any]) -> bool:
        """Return whether to load the optimizer's state from a checkpoint with this `state`."""
        if self._same is None:
            kept = state["callbacks"].get("handover") or {}
            self._same = self.trial.handover.is_own_checkpoint(kept)
        return self._same and state["stepped"]

    def needed(self, path: Path) -> set[str]:
        """Return the files that this rank reads, by the table and state in `path`."""
        (model,), (optimizer,) = self.context.models, self.context.optimizers
        return files_needed(path, model, optimizer if self._wants_all(_read_state(path)) else None)


def _read_state(path: Path) -> dict[str, Any]:
    try:
        return json.loads((path / STATE).read_text())
    except (OSError, ValueError) as error:
        why = f"no checkpoint of a sharded model ({STATE}: {first_line(error)})"
        raise UserError(f"{path}: {why}; give another") from None
