"""Private names of Determined that this package uses, each once, with the reason for it.

tests/test_determined_internals.py compares them with the installed version; they are of 0.38.1.
Those of its trial loop are in training/controller.py.
"""

import copy
from pathlib import Path
from typing import Any

import determined
from determined import core, pytorch
from torch import nn

from detalbert.sums import Json


def experiment_config(info: determined.ClusterInfo) -> Json:
    """Return a copy of the experiment's config, private because its format may change."""
    return dict(info.trial._config)


def set_experiment_config(
    context: pytorch.PyTorchTrialContext,
    config: Json,
) -> None:
    """Set the config that Determined writes into every checkpoint's load_data.json."""
    context._exp_conf = config


def wrap_model(
    context: pytorch.PyTorchTrialContext,
    model: nn.Module,
) -> nn.Module:
    """Wrap `model` without DistributedDataParallel, which `context.wrap_model` alone would add."""
    context._PyTorchDistributedDataParallel = lambda model: model  # type: ignore[assignment,misc]
    return context.wrap_model(model)


def core_context(context: pytorch.PyTorchTrialContext) -> core.Context:
    """Return the Core API's context, which `pytorch.init` does not return."""
    return context._core


def set_step(context: pytorch.PyTorchTrialContext, step: int) -> None:
    """Set the current step, which Determined's loop counts, for steps without that loop."""
    context._current_batch_idx = step


class CheckpointContext(core.CheckpointContext):
    """Determined's checkpoint context with public names; replaces `theirs` and has its state."""

    def __init__(self, theirs: core.CheckpointContext) -> None:
        vars(self).update(vars(theirs))
        self.storage = theirs._storage_manager
        self.distributed = theirs._dist

    def upload_as(self, name: str, folder: Path, metadata: Json, peers: Any) -> None:
        """Upload each rank's `folder` into checkpoint `name`. Collective over `peers`, which
        replaces Determined's distributed context. `upload(shard=True)` would choose the name.
        """
        uploading = copy.copy(self)
        uploading._dist = peers
        uploading._upload_sharded(str(folder), name, metadata, selector=lambda path: True)
