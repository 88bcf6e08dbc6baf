"""First weights of a sharded model: rank 0 has the whole model, and every rank gets its shards.

So every layout starts from bitwise identical weights, which are transformers' own. The price is
that rank 0 holds the model once in CPU memory, 4 bytes for each parameter.
"""

import copy
from functools import partial

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from detalbert.engine.models import load_weights, model_error, random_model
from detalbert.errors import UserError, as_user_error
from detalbert.progress import waiting
from lm.layout import host_group


@torch.no_grad()
def fill(model: PreTrainedModel, seed: int, weights: str | None) -> None:
    """Fill parameters and buffers of a sharded model whose storage exists. Collective.

    Args:
        model: sharded or not.
        seed: of random weights.
        weights: a folder or hub name with safetensors; None: random weights.

    Raises:
        UserError: on all ranks, if weights are missing, not finite or do not fit; Unavailable if
            the hub failed.
    """
    unsharded = _on_rank_0(model.config, seed, weights)
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    state = {} if unsharded is None else unsharded.state_dict()
    set_model_state_dict(model, state, options=options)

    # Buffers that no state has, such as the frequencies of rotary positions.
    sources = {} if unsharded is None else dict(unsharded.named_buffers())
    for name, buffer in model.named_buffers():
        if name in sources:
            buffer.copy_(sources[name])
        dist.broadcast(buffer, src=0)


def _on_rank_0(config: PretrainedConfig, seed: int, weights: str | None) -> PreTrainedModel | None:
    """Return the whole model on rank 0, None on the others; raise its UserError on all."""
    model = None
    errors: list[UserError | None] = [None]
    if dist.get_rank() == 0:
        try:
            model = _load(weights) if weights else _draw(config, seed)
        except UserError as error:
            errors = [error]
    # Over the group that waits long enough for a download.
    dist.broadcast_object_list(errors, src=0, group=host_group(dist.group.WORLD))
    if errors[0] is not None:
        errors[0].on_all_ranks = True
        raise errors[0]
    return model


def _draw(config: PretrainedConfig, seed: int) -> PreTrainedModel:
    """Return what transformers draws after `torch.manual_seed(seed)`. The padding token, which it
    would set to zero, is drawn too: packed rows have no padding, and it may be the end of a text.
    """
    config = copy.deepcopy(config)
    config.pad_token_id = None
    with waiting("drawing random weights"), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return random_model(AutoModelForCausalLM, config, attention=None)


def _load(name: str) -> PreTrainedModel:
    """Return the model of a folder or hub name, whose weights must be complete."""
    with as_user_error(partial(model_error, name)):
        model, missing = load_weights(
            AutoModelForCausalLM, name, attention=None, use_safetensors=True
        )
    if missing:
        raise UserError(
            f"the weights of {name!r} lack {min(missing)!r}",
            key="hyperparameters.model",
            cure="give a folder whose weights fit its config.json",
        )
    return model
