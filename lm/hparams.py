"""Keys of `hyperparameters:` and `data:` of a causal language model's experiment."""

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from detalbert.errors import UserError
from detalbert.settings.hparams import StepHParams
from detalbert.settings.sections import Parsers, limited, parse_section
from detalbert.settings.text import CorpusConfig


@dataclass(frozen=True)
class DocumentsConfig(CorpusConfig):
    """Documents to train on; a tokenizer that is trained on them is byte-level."""

    source = "documents"
    held_out_source = "validation_documents"

    documents: str | None = None  # see corpus/sources.py for what it may name
    validation_documents: str | None = None  # held-out; default: a fraction of the documents


@dataclass(frozen=True)
class LmHParams(StepHParams):
    """Hyperparameters of a language model: training, and sharding over the ranks.

    `model_config` has `model_type` (gpt2, gpt_neox, llama or qwen2) and transformers' keys.
    """

    layout: dict[str, Any] | Literal["auto"] = "auto"  # or replicate, shard, tensor: see layout.py
    activation_checkpointing: str = limited("none", choices=("none", "full"))
    across_documents: bool = False  # whether attention and targets cross the end of a document
    max_validation_windows: int | None = limited(None, above=0)
    samples: int = limited(0, least=0, most=16)  # continuations of held-out text at a validation

    global_batch_size: int = 32
    epochs: float = 1
    base_learning_rate: float = 1e-3
    base_batch_size: int = 32
    optimizer: str = limited("adamw", choices=("adamw", "muon"))
    beta2: float = 0.95
    weight_decay: float = 0.1
    warmup_fraction: float = 0.02
    max_seq_length: int = limited(1024, least=2)
    precision: str = limited("auto", choices=("auto", "fp32", "bf16", "fp16"))
    allreduce_dtype: str = limited("fp32", choices=("fp32",))

    def check(self) -> None:
        self.check_one_model()
        if self.compile:
            raise UserError("hyperparameters.compile: not for a sharded model; leave it out")
        if self.max_tokens_per_forward == "auto":
            raise UserError(
                "hyperparameters.max_tokens_per_forward: a sharded model takes no 'auto'; give a "
                "number of tokens"
            )
        super().check()


# Both raise UserError as `parse_section` does.
parse_documents_config = partial(parse_section, DocumentsConfig, "data")
parse_lm_hparams = partial(parse_section, LmHParams, "hyperparameters")
PARSERS = Parsers(parse_documents_config, parse_lm_hparams)
