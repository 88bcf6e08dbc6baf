"""Keys of `hyperparameters:` and `data:` of a pretraining experiment.

Defaults are the published recipe for ALBERT-base and large; for another model set the learning
rate, the batch and the optimizer.
"""

from dataclasses import replace
from functools import partial
from typing import Literal

from pydantic import Field

from detalbert.errors import UserError
from detalbert.settings.hparams import StepHParams
from detalbert.settings.languages import ENGLISH, Language
from detalbert.settings.metric import Metric
from detalbert.settings.sections import Parsers, Whole, parse_section, strict_dataclass
from detalbert.settings.text import CorpusConfig, Sources
from detalbert.settings.values import Config

ALBERT = "albert"  # transformers' name of the family that has all objectives
SIZE_KEYS = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "embedding_size",
    "intermediate_size",
)
# Lan et al. 2020 (arXiv:1909.11942), table 1; `tiny` is for tests and laptops.
SIZES = {
    "tiny": (128, 4, 4, 64, 512),
    "base": (768, 12, 12, 128, 3072),
    "large": (1024, 24, 16, 128, 4096),
    "xlarge": (2048, 24, 16, 128, 8192),
    "xxlarge": (4096, 12, 64, 128, 16384),
}


@strict_dataclass
class TextConfig(CorpusConfig):
    """Text for pretraining an encoder; default of `tokenizer`: that of `hyperparameters.model`."""

    source = "text"
    held_out_source = "validation"
    model_has_tokenizer = True

    text: Sources = None  # one source, or a list of sources
    validation: Sources = None  # held-out text; default: a fraction of the documents
    language: Language = ENGLISH  # by ISO 639-1 code; says where sentences end
    max_validation_windows: Whole | None = Field(10_000, gt=0)


@strict_dataclass
class PretrainHParams(StepHParams):
    """`hyperparameters:` of a pretraining experiment."""

    # A published size; model_config changes its keys.
    size: Literal["tiny", "base", "large", "xlarge", "xxlarge"] | None = None
    matching_start: bool = False  # for small models: see matching.py
    # False: masked language model alone, one segment. Default: True of ALBERT, which has its head.
    sentence_order: bool | None = None
    masked_fraction: float = Field(0.15, gt=0, lt=1)
    max_ngram: int = Field(3, gt=0, le=1_000)
    # This part of the windows trains to select a span instead: see spans.py.
    span_fraction: float = Field(0.0, ge=0, lt=1)

    global_batch_size: int = Field(4096, gt=0, le=1_000_000)
    max_steps: Whole | None = Field(125_000, gt=0)
    base_learning_rate: float = Field(0.00176, gt=0, le=1e20)
    base_batch_size: int = Field(4096, gt=0, le=1_000_000)
    optimizer: Literal["lamb", "adamw", "radam"] = "lamb"
    weight_decay: float = Field(0.01, ge=0, le=1_000_000)
    warmup_fraction: float = Field(0.025, ge=0, le=1)
    max_seq_length: int = Field(512, ge=8, le=65_535)

    def model_keys(self) -> Config:
        """Return the model's config keys: those of `size`, overridden by `model_config`."""
        if self._is_of_another_family():
            return self.model_config or {}
        keys: Config = {"max_position_embeddings": 512}
        if self.size is not None:
            keys.update(zip(SIZE_KEYS, SIZES[self.size], strict=True))
        return {
            **keys,
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
            **(self.model_config or {}),
        }

    def of_family(self, model_type: object) -> "PretrainHParams":
        """Return them for a model of transformers' `model_type`, `sentence_order` set. Raises
        UserError for a key that is ALBERT's alone, of another model.
        """
        is_albert = model_type == ALBERT
        for key in ("sentence_order", "span_fraction", "matching_start", "size"):
            if getattr(self, key) and not is_albert:
                raise UserError(
                    f"only ALBERT is pretrained with it, and the model is {model_type}",
                    key=f"hyperparameters.{key}",
                    cure="leave it out",
                )
        if self.sentence_order is not None:
            return self
        return replace(self, sentence_order=is_albert)

    def _is_of_another_family(self) -> bool:
        """Return whether a `model_config` is not ALBERT's."""
        return (self.model_config or {}).get("model_type", ALBERT) != ALBERT

    def check(self) -> None:
        draws_weights = self.size is not None or self.model_config is not None
        if (self.model is not None) == draws_weights:
            raise UserError(
                "set either 'model' (to go on from) or 'size', 'model_config' (random weights)",
                key="hyperparameters.size",
            )
        super().check()
        keys = self.model_keys()
        if self._is_of_another_family():
            self.of_family(keys["model_type"])
        elif self.model is None:
            self.check_positions(keys["max_position_embeddings"])
        # transformers' defaults
        embedding_size = keys.get("embedding_size", 128)
        hidden_size = keys.get("hidden_size", 4096)
        if self.matching_start and (self.model is not None or embedding_size != hidden_size):
            raise UserError(
                "it is for random weights, with embedding_size equal to hidden_size",
                key="hyperparameters.matching_start",
            )


METRICS = (
    Metric("loss", charted=True, logged=True, smaller_is_better=True),
    Metric("mlm_accuracy", charted=True, logged=True),
    Metric("sop_accuracy", charted=True, logged=True),
    Metric("span_accuracy", charted=True, logged=True),
    Metric("mlm_loss", charted=True, smaller_is_better=True),
    Metric("sop_loss", charted=True, smaller_is_better=True),
    Metric("span_loss", charted=True, smaller_is_better=True),
)

# Both raise UserError as `parse_section` does.
parse_text_config = partial(parse_section, TextConfig, "data")
parse_pretrain_hparams = partial(parse_section, PretrainHParams, "hyperparameters")
PARSERS = Parsers(TextConfig, PretrainHParams, METRICS)
