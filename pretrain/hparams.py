"""The keys of `hyperparameters:` and `data:` of a pretraining experiment.

Defaults are the published recipe for ALBERT-base and large: 125,000 steps of 4,096 windows of 512
tokens with LAMB at 0.00176, 3,125 steps of warm-up.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from detalbert.errors import UserError
from detalbert.settings.hparams import StepHParams, check_step
from detalbert.settings.sections import parse_section

# Lan et al. 2020 (arXiv:1909.11942), table 1; `tiny` is for tests and laptops.
_SIZES = {
    "tiny": (128, 4, 4, 64, 512),
    "base": (768, 12, 12, 128, 3072),
    "large": (1024, 24, 16, 128, 4096),
    "xlarge": (2048, 24, 16, 128, 8192),
    "xxlarge": (4096, 12, 64, 128, 16384),
}
_CHOICES = {"optimizer": ("lamb", "adamw", "radam"), "size": tuple(_SIZES)}


@dataclass(frozen=True)
class PretrainHParams(StepHParams):
    """`hyperparameters:` of a pretraining experiment."""

    size: str | None = None  # tiny, base, large, xlarge, xxlarge; model_config changes its keys
    matching_start: bool = False  # for small models: see matching.py
    sentence_order: bool = True  # False: masked language model alone, one segment
    masked_fraction: float = 0.15
    max_ngram: int = 3
    span_fraction: float = 0.0  # of windows that train to select a span instead: see spans.py

    global_batch_size: int = 4096
    max_steps: int | None = 125_000
    base_learning_rate: float = 0.00176
    base_batch_size: int = 4096
    optimizer: str = "lamb"
    weight_decay: float = 0.01
    warmup_fraction: float = 0.025
    max_seq_length: int = 512

    def model_keys(self) -> dict[str, Any]:
        """The model's config: that of `size`, with what `model_config` says instead."""
        keys: dict[str, Any] = {"max_position_embeddings": 512}
        if self.size is not None:
            names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "embedding_size")
            keys.update(zip((*names, "intermediate_size"), _SIZES[self.size], strict=True))
        dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        return {**keys, **dropout, **(self.model_config or {})}


def parse_pretrain_hparams(values: Mapping[str, Any]) -> PretrainHParams:
    """`hyperparameters:` of a pretraining experiment. Raises UserError as `parse_hparams` does."""
    hparams = parse_section(PretrainHParams, "hyperparameters", values, _CHOICES)
    if (hparams.model is None) == (hparams.size is None and hparams.model_config is None):
        raise UserError(
            "hyperparameters.size: set either 'model' (a pretrained folder or hub name to go on "
            "from) or 'size' (one from random weights), with 'model_config' to change the latter"
        )
    if hparams.masked_fraction >= 1:
        raise UserError(
            f"hyperparameters.masked_fraction: {hparams.masked_fraction} leaves nothing to read; "
            "use less than 1"
        )
    if hparams.span_fraction >= 1:
        raise UserError(
            f"hyperparameters.span_fraction: {hparams.span_fraction} leaves no window for the "
            "masked language model; use less than 1"
        )
    if hparams.max_seq_length < 8 or hparams.max_seq_length > 65_535:
        raise UserError(
            f"hyperparameters.max_seq_length: {hparams.max_seq_length} is not between 8 and 65535"
        )
    positions = hparams.model_keys()["max_position_embeddings"]
    if hparams.model is None and positions < hparams.max_seq_length:
        raise UserError(
            f"hyperparameters.max_seq_length: {hparams.max_seq_length} tokens, and the model has "
            f"{positions} positions; lower it, or raise model_config.max_position_embeddings"
        )
    keys = hparams.model_keys()
    sizes = {keys.get("embedding_size", 128), keys.get("hidden_size", 4096)}
    if hparams.matching_start and (hparams.model is not None or len(sizes) > 1):
        raise UserError(
            "hyperparameters.matching_start: it is for a model from random weights, with "
            "model_config.embedding_size equal to hidden_size"
        )
    check_step(hparams)
    return hparams
