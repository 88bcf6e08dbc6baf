"""Causal language models of transformers, sharded over a mesh of ranks.

A model is built on the meta device, cut into shards, and only then filled, so that no device ever
holds it unsharded. The price is an order that must be kept: first tensor parallelism, then
compilation and recomputation of layers, then FSDP, then memory and weights.
"""

import functools
import logging
from collections.abc import Iterable

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
from detalbert.engine.models import (
    check_fits,
    check_vocabulary,
    config_from_keys,
    named_config,
    not_built,
)
from detalbert.errors import UserError, as_user_error
from lm.hparams import LmHParams
from lm.initial import fill
from lm.layout import STYLES, tensor_plan
from lm.loss import head_loss
from lm.packed import PROVEN, CausalRow, hidden_states

# DTensor says "2 sequential all_gather" for every parameter that is split both ways.
logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)


def causal_config(hparams: LmHParams, tokenizer: PreTrainedTokenizerBase) -> PretrainedConfig:
    """Return the config of `hparams.model`, or of `hparams.model_config`, for `tokenizer`.

    The latter has no dropout unless its keys set it.

    Raises:
        UserError: for a key that the model does not have, and if sizes do not fit.
    """
    # Named models bring their config along; a config of one's own may need the tokenizer's size.
    keys = hparams.model_config or {}
    if hparams.model is not None:
        config = named_config(hparams.model)
    elif "model_type" not in keys:
        raise UserError(
            "missing", key="hyperparameters.model_config.model_type", cure=f"use {PROVEN}"
        )
    else:
        config = config_from_keys(keys, tokenizer)
        for key in config.to_dict():
            if key.endswith(("dropout", "pdrop")) and key not in keys:
                setattr(config, key, 0.0)
    check_vocabulary(config, tokenizer)
    hparams.check_positions(getattr(config, "max_position_embeddings", None))
    return config


def empty_model(config: PretrainedConfig) -> PreTrainedModel:
    """Return the model of `config` in fp32 on the meta device.

    Packed rows have no padding, so the padding token's row is trained like any other.

    Raises:
        UserError: for a type without such a model.
    """
    with as_user_error(not_built), torch.device("meta"):
        model = AutoModelForCausalLM.from_config(
            config, attn_implementation=PACKED_CAUSAL, dtype=torch.float32
        )
    embedding = model.get_input_embeddings()
    if isinstance(embedding, nn.Embedding):
        embedding.padding_idx = None
    return model


def _layers(model: nn.Module) -> list[nn.Module]:
    return [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]


def _count(parameters: Iterable[nn.Parameter]) -> int:
    return sum(parameter.numel() for parameter in parameters)


class CausalLoss(nn.Module):
    """A causal model and the loss of its vocabulary head, as one module.

    FSDP gathers parameters for the forward of a module that it shards, and frees them after it. The
    loss reads the head's weight, so it is computed in a forward of its own. Checkpoints and
    optimizers are of `model`, whose parameters keep transformers' names.
    """

    model: PreTrainedModel

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    @property
    def device(self) -> torch.device:
        return self.model.device

    def set_requires_all_reduce(self, needed: bool) -> None:
        """Do nothing: FSDP overrides this where it shards the module."""

    def reshard(self) -> None:
        """Do nothing, as above."""

    def forward(self, row: CausalRow, predict: bool = False) -> tuple[Tensor, Tensor] | Tensor:
        """Return what loss.head_loss does for `row`, which is on the device; with `predict` the
        likeliest token after each of its tokens, int64 [T].
        """
        hidden = hidden_states(self.model, row)  # [T, hidden]
        weight = self.model.get_output_embeddings().weight  # [V, hidden]
        if predict:
            unsharded = weight.full_tensor() if isinstance(weight, DTensor) else weight
            return (hidden @ unsharded.t()).float().argmax(1)
        if not isinstance(weight, DTensor):
            return head_loss(hidden, weight, row["targets"])

        # Tensor-parallel rank r has the r-th of equal shards of the vocabulary (rounded up).
        mesh = weight.device_mesh
        shard_size = -(-len(weight) // mesh.size())
        return head_loss(
            hidden,
            weight.to_local(),
            row["targets"],
            first=mesh.get_local_rank() * shard_size,
            group=mesh.get_group(),
        )


def build_causal_model(
    config: PretrainedConfig,
    mesh: DeviceMesh,
    seed: int,
    weights: str | None = None,
    half: torch.dtype | None = None,
    recomputed: float = 0.0,
    compiled_tokens: int = 0,
) -> CausalLoss:
    """Build the model of `config`, sharded over `mesh` (of layout.make_mesh), with its weights.

    All ranks of the mesh must call it equally often. Its parameters and their gradients are fp32
    DTensors; in a single process with fp32 products, plain tensors.

    Args:
        config: of the model, see `causal_config`.
        mesh: ranks [replicate, shard, tensor].
        seed: of the initial weights.
        weights: a folder or hub name to read them from; default: drawn from `seed`.
        half: type of products and of gathered parameters; gradients are reduced in fp32.
        recomputed: share of the layers that keep only their inputs, and run again in backward.
        compiled_tokens: tokens of the longest row, to compile the layers (see
            gradients.compile_layers); 0: run them uncompiled.

    Raises:
        UserError: if the model does not load; layout.choose_layout checks if it can be sharded.
    """
    model = empty_model(config)
    check_fits(model, weights, ranks=mesh.size())
    tensor_parallel = mesh["tensor"].size() > 1
    if tensor_parallel:
        parallelize_module(model, mesh["tensor"], _plan(model))
    if compiled_tokens:
        _compile(model, longest=compiled_tokens, split=tensor_parallel)
    _recompute(model, recomputed)
    causal_loss = CausalLoss(model)
    # A single process has nothing to share, and FSDP would copy all parameters for each row.
    if mesh.size() > 1 or half is not None:
        _shard(causal_loss, mesh, half)

    # Each rank now allocates its shards alone, and fills them.
    model.to_empty(device=mesh.device_type)
    model.tie_weights()  # to_empty unties what FSDP does not hold
    fill(model, seed, weights)
    return causal_loss.train()


def _compile(model: PreTrainedModel, longest: int, split: bool) -> None:
    """Have each layer compiled when it first runs, without FSDP's hooks.

    Code for rows of any length cannot hold the DTensors of tensor parallelism (`split`): all rows
    have the `longest` length there.
    """
    # torch takes None for: fixed sizes first, any sizes once they differ; here they never do.
    for layer in _layers(model):
        layer.forward = torch.compile(layer.forward, dynamic=None if split else True)
    model.row_multiple = longest if split else ROW_MULTIPLE


def _recompute(model: PreTrainedModel, share: float) -> None:
    """Have `share` of the layers, evenly spread and the last among them, run again in backward."""
    layers = _layers(model)
    count = round(share * len(layers))
    for number, layer in enumerate(layers):
        before = number * count // len(layers)  # recomputed ones among the layers before
        if (number + 1) * count // len(layers) > before:
            layer.forward = functools.partial(checkpoint, layer.forward, use_reentrant=False)


def _shard(causal_loss: CausalLoss, mesh: DeviceMesh, half: torch.dtype | None) -> None:
    """Apply FSDP2 to each layer, and to the rest of the model as one unit."""
    # With replicas FSDP shards inside each, and sums gradients across them.
    replicated = mesh["replicate"].size() > 1
    shard = functools.partial(
        fully_shard,
        mesh=mesh["replicate", "shard"] if replicated else mesh["shard"],
        mp_policy=MixedPrecisionPolicy(param_dtype=half, reduce_dtype=torch.float32),
    )
    for layer in _layers(causal_loss.model):
        shard(layer)
    shard(causal_loss)


def _plan(model: PreTrainedModel) -> dict[str, ParallelStyle]:
    """Return the model's own plan, {"model.layers.*.self_attn.q_proj": ColwiseParallel()}, with the
    head: each rank has a shard of its vocabulary, on which the loss works. A head tied to the
    embedding is, like it, unsharded on every tensor-parallel rank.
    """
    # Names in the config's plan are those of the base model.
    plan: dict[str, ParallelStyle] = {}
    for name, style in tensor_plan(model.config).items():
        plan[f"{model.base_model_prefix}.{name}"] = STYLES[style]()

    head = model.get_output_embeddings()
    if head.weight is not model.get_input_embeddings().weight:
        head_name = next(name for name, module in model.named_modules() if module is head)
        plan[head_name] = ColwiseParallel()
    return plan
