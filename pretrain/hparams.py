"""Keys of `hyperparameters:` of a pretraining experiment.

Defaults are the published recipe for ALBERT-base and large.
"""

from dataclasses import dataclass
from functools import partial

from detalbert.errors import UserError
from detalbert.settings.albert import SIZE_KEYS, SIZES
from detalbert.settings.hparams import StepHParams
from detalbert.settings.sections import Parsers, parse_section, setting
from detalbert.settings.text import parse_text_config
from detalbert.settings.values import Config


@dataclass(frozen=True)
class PretrainHParams(StepHParams):
    """`hyperparameters:` of a pretraining experiment."""

    # A published size; model_config changes its keys.
    size: str | None = setting(None, choices=tuple(SIZES))
    matching_start: bool = False  # for small models: see matching.py
    sentence_order: bool = True  # False: masked language model alone, one segment
    masked_fraction: float = setting(0.15, gt=0, lt=1)
    max_ngram: int = setting(3, gt=0, le=1_000)
    # This part of the windows trains to select a span instead: see spans.py.
    span_fraction: float = setting(0.0, ge=0, lt=1)

    global_batch_size: int = 4096
    max_steps: int | None = 125_000
    base_learning_rate: float = 0.00176
    base_batch_size: int = 4096
    optimizer: str = setting("lamb", choices=("lamb", "adamw", "radam", "muon"))
    weight_decay: float = 0.01
    warmup_fraction: float = 0.025
    max_seq_length: int = setting(512, ge=8, le=65_535)

    def model_keys(self) -> Config:
        """Return the model's config keys: those of `size`, overridden by `model_config`."""
        keys: Config = {"max_position_embeddings": 512}
        if self.size is not None:
            keys.update(zip(SIZE_KEYS, SIZES[self.size], strict=True))
        return {
            **keys,
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
            **(self.model_config or {}),
        }

    def check(self) -> None:
        draws_weights = self.size is not None or self.model_config is not None
        if (self.model is not None) == draws_weights:
            raise UserError(
                "set either 'model' (to go on from) or 'size', 'model_config' (random weights)",
                key="hyperparameters.size",
            )
        super().check()
        keys = self.model_keys()
        if self.model is None:
            self.check_positions(keys["max_position_embeddings"])
        # transformers' defaults
        embedding_size = keys.get("embedding_size", 128)
        hidden_size = keys.get("hidden_size", 4096)
        if self.matching_start and (self.model is not None or embedding_size != hidden_size):
            raise UserError(
                "it is for random weights, with embedding_size equal to hidden_size",
                key="hyperparameters.matching_start",
            )


# Raises UserError as `parse_section` does.
parse_pretrain_hparams = partial(parse_section, PretrainHParams, "hyperparameters")
PARSERS = Parsers(parse_text_config, parse_pretrain_hparams)
