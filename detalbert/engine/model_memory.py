"""Whether a model can be built: its parameters are counted on the meta device, without memory.

The count ends at the first parameter that is too much, so a config of absurd sizes is refused in a
moment. It costs the time of building the modules, a tenth of a second for BERT-base. A model is
refused only if its fp32 weights alone are larger than the machine's memory: such a one never ran.
"""

import contextlib
import copy
import math
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from transformers import PretrainedConfig, PreTrainedModel

from detalbert.errors import UserError

MOST_TENSORS = 100_000  # of parameters; transformers' largest models have a tenth of that


@contextlib.contextmanager
def counted_parameters(limit: float = math.inf) -> Iterator[None]:
    """Raise UserError as soon as modules that are built in the block have more than `limit`
    parameters, or more than MOST_TENSORS tensors of them.
    """
    tensors = 0
    parameters = 0

    def count(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        # Called as each parameter is registered: the build ends at the first that is too much.
        nonlocal tensors, parameters
        if parameter is None:
            return
        tensors += 1
        parameters += parameter.numel()
        if tensors > MOST_TENSORS:
            raise UserError(
                f"more than {MOST_TENSORS:,} tensors of parameters",
                key="hyperparameters.model",
                cure="give a model with fewer layers",
            )
        if parameters > limit:
            gigabytes = 4 * limit / 1e9  # in fp32
            raise UserError(
                f"its weights are larger than this machine's {gigabytes:,.0f} GB of memory",
                key="hyperparameters.model",
                cure="give a smaller one",
            )

    handle = register_module_parameter_registration_hook(count)
    try:
        yield
    finally:
        handle.remove()


def check_fits(
    model_class: Any, make: Callable[[PretrainedConfig], PreTrainedModel], config: PretrainedConfig
) -> None:
    """Raise UserError if the fp32 weights of `config`'s model exceed this machine's memory.

    Args:
        model_class: transformers' class of the model, or an auto class.
        make: builds the model from a config.
        config: of the model.
    """
    if hasattr(model_class, "_model_mapping"):
        # Import the module before the meta device: under it torch 2.6 cannot.
        model_class._model_mapping.get(type(config), None)
    memory = psutil.virtual_memory().total + psutil.swap_memory().total  # bytes
    limit = memory / 4  # parameters in fp32
    with torch.random.fork_rng(devices=[]), counted_parameters(limit), torch.device("meta"):
        make(copy.deepcopy(config))
