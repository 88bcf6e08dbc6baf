"""Private names of Determined that this package uses, each once, with the reason for it.

tests/test_determined_internals.py compares them with the installed version; they are of 0.38.1.
Those of its trial loop and of its checkpoints are in training/trial_loop.py.
"""

import determined
from determined import pytorch
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
