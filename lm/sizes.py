"""Sizes of a causal language model that determine its memory, without its weights."""

from transformers import PretrainedConfig
from transformers.modeling_layers import GradientCheckpointingLayer

from detalbert.engine.memory import Memory, Sizes, split
from lm.hparams import LmHParams
from lm.layout import Layout
from lm.model import empty_model


def causal_sizes(config: PretrainedConfig) -> Sizes:
    """Return the sizes of the model of `config`. Raises UserError as `empty_model` does."""
    model = empty_model(config)
    parameters = sum(p.numel() for p in model.parameters())
    modules = [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]
    layer = max((sum(p.numel() for p in m.parameters()) for m in modules), default=0)
    # Tensor parallel splits linear layers: no embedding, no norm, and no head that is one.
    unsplit = {p for p in model.parameters() if p.ndim < 2}
    unsplit |= set(model.get_input_embeddings().parameters())
    return Sizes.of(config, parameters, layer, sum(p.numel() for p in unsplit))


def split_memory(sizes: Sizes, layout: Layout, hparams: LmHParams, grid: bool = False) -> Memory:
    """Estimate the memory per GPU with `layout`; see memory.split."""
    checkpointing = hparams.activation_checkpointing == "full"
    half = hparams.precision != "fp32"
    return split(sizes, layout.shard, layout.tensor, half, checkpointing, grid)
