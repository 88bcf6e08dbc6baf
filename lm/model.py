"""Causal language models of transformers, sharded over a mesh of ranks."""

import functools
import logging
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, parallelize_module
from torch.utils.checkpoint import checkpoint
from transformers import (
    AutoModelForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.modeling_layers import GradientCheckpointingLayer

from detalbert.engine.attention import PACKED_CAUSAL
from detalbert.engine.forward import ROW_MULTIPLE
from detalbert.engine.memory import Sizes, count_recomputed
from detalbert.engine.model_memory import counted_parameters
from detalbert.engine.models import (
    check_heads,
    check_vocabulary,
    config_from_keys,
    named_config,
    not_built,
)
from detalbert.errors import UserError, as_user_error
from detalbert.waiting import waiting
from lm import initial
from lm.hparams import LmHParams
from lm.layout import STYLES, tensor_plan
from lm.loss import head_loss
from lm.packed import PROVEN, CausalRow, hidden_states

# DTensor says "2 sequential all_gather" for every parameter that is split both ways.
logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)


def causal_config(hparams: LmHParams, tokenizer: PreTrainedTokenizerBase) -> PretrainedConfig:
    """Return the config of `hparams.model`, or of `hparams.model_config`, for `tokenizer`.

    The latter has no dropout unless its keys set it. Raises UserError for a key that the model does
    not have, and if sizes do not fit.
    """
    keys = hparams.model_config or {}
    if hparams.model is not None:
        config = named_config(hparams.model)
    elif "model_type" not in keys:
        raise UserError(f"hyperparameters.model_config.model_type: missing; use {PROVEN}")
    else:
        config = config_from_keys(keys, tokenizer)
        for key in config.to_dict():
            if key.endswith(("dropout", "pdrop")) and key not in keys:
                setattr(config, key, 0.0)
    check_vocabulary(config, tokenizer)
    hparams.check_positions(getattr(config, "max_position_embeddings", None))
    return config


def empty_model(config: PretrainedConfig) -> PreTrainedModel:
    """Return the model of `config` in fp32 on the meta device. Packed rows have no padding, so the
    padding token's row is trained like any other. Raises UserError for a type without such a model.
    """
    with as_user_error(not_built), counted_parameters(), torch.device("meta"):
        check_heads(config)
        model = AutoModelForCausalLM.from_config(
            config, attn_implementation=PACKED_CAUSAL, dtype=torch.float32
        )
    if isinstance(embedding := model.get_input_embeddings(), nn.Embedding):
        embedding.padding_idx = None
    return model


def causal_sizes(config: PretrainedConfig) -> Sizes:
    """Return the sizes that determine the memory of `config`'s model. Raises as `empty_model`."""
    model = empty_model(config)
    # Tensor parallel splits linear layers: no embedding, no norm, and no head that is one.
    unsplit = {p for p in model.parameters() if p.ndim < 2}
    unsplit |= set(model.get_input_embeddings().parameters())
    layer = max((_count(m.parameters()) for m in _layers(model)), default=0)
    return Sizes.of(config, _count(model.parameters()), layer, _count(unsplit))


def _layers(model: nn.Module) -> list[nn.Module]:
    return [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]


def _count(parameters: Iterable[nn.Parameter]) -> int:
    return sum(parameter.numel() for parameter in parameters)


def build_causal_model(
    config: PretrainedConfig,
    mesh: DeviceMesh,
    seed: int,
    weights: str | None = None,
    half: torch.dtype | None = None,
    recomputed: float = 0.0,
    compiled: int = 0,
) -> PreTrainedModel:
    """Build the model of `config`, sharded over `mesh` (of layout.make_mesh), with its weights.

    `model(row)`, with a CausalRow on its device, returns what loss.head_loss does; all ranks of the
    mesh must call it equally often. Parameters keep transformers' names; they and their gradients
    are fp32 DTensors.

    Args:
        weights: a folder or hub name to read them from; default: drawn from `seed`.
        half: type of products and of gathered parameters; gradients are reduced in fp32.
        recomputed: share of the layers that keep only their inputs, and run again in backward.
        compiled: tokens of the longest row, to compile the layers (gradients.compile_layers); or 0.

    Raises UserError if the model does not load; layout.choose_layout checks if it can be sharded.
    """
    model = empty_model(config)
    rules = initial.record_rules(model)
    if mesh["tensor"].size() > 1:
        parallelize_module(model, mesh["tensor"], _plan(model))
    if compiled:
        _compile(model, compiled, mesh["tensor"].size() > 1)
    _recompute(model, recomputed)
    model.forward = functools.partial(_scores, model)
    _shard(model, mesh, half)
    model.to_empty(device=mesh.device_type)
    model.tie_weights()  # to_empty unties what FSDP does not hold
    with waiting(f"loading the weights of {weights}" if weights else "drawing random weights"):
        if weights is None:
            initial.fill(model, rules, seed)
        else:
            initial.load_initial(model, rules, weights)
    return model.train()


def _compile(model: PreTrainedModel, longest: int, split: bool) -> None:
    """Have each layer compiled when it first runs, without FSDP's hooks.

    Code for rows of any length cannot hold the DTensors of tensor parallelism (`split`): all rows
    have the `longest` length there.
    """
    for layer in _layers(model):
        layer.forward = torch.compile(layer.forward, dynamic=None if split else True)
    model.row_multiple = longest if split else ROW_MULTIPLE


def _recompute(model: PreTrainedModel, share: float) -> None:
    """Have `share` of the layers, evenly spread and the last among them, run again in backward."""
    layers = _layers(model)
    count = count_recomputed(len(layers), share)
    for i, layer in enumerate(layers):
        if (i + 1) * count // len(layers) > i * count // len(layers):
            layer.forward = functools.partial(checkpoint, layer.forward, use_reentrant=False)


def _shard(model: PreTrainedModel, mesh: DeviceMesh, half: torch.dtype | None) -> None:
    """Apply FSDP2 to each layer, and to the rest of `model` as one unit."""
    copies = mesh["replicate"].size() > 1
    options: dict[str, Any] = {
        "mesh": mesh["replicate", "shard"] if copies else mesh["shard"],
        "mp_policy": MixedPrecisionPolicy(param_dtype=half, reduce_dtype=torch.float32),
    }
    for layer in _layers(model):
        fully_shard(layer, **options)
    fully_shard(model, **options)


def _plan(model: PreTrainedModel) -> dict[str, ParallelStyle]:
    """Return the model's own plan, {"model.layers.*.self_attn.q_proj": ColwiseParallel()}, with the
    head: each rank has a shard of its vocabulary, on which the loss works. A head tied to the
    embedding is, like it, unsharded on every tensor-parallel rank.
    """
    prefix, head = model.base_model_prefix, model.get_output_embeddings()
    own = tensor_plan(model.config)
    plan: dict[str, ParallelStyle] = {f"{prefix}.{k}": STYLES[v]() for k, v in own.items()}
    if head.weight is not model.get_input_embeddings().weight:
        place = next(name for name, module in model.named_modules() if module is head)
        plan[place] = ColwiseParallel()
    return plan


def _scores(model: PreTrainedModel, row: CausalRow) -> tuple[Tensor, Tensor]:
    """Run the model's forward on `row`; return what loss.head_loss returns."""
    hidden = hidden_states(model, row)
    weight = model.get_output_embeddings().weight
    if not isinstance(weight, DTensor):
        return head_loss(hidden, weight, row["targets"])
    peers = weight.device_mesh
    first = peers.get_local_rank() * -(-len(weight) // peers.size())
    return head_loss(hidden, weight.to_local(), row["targets"], first, peers.get_group())
