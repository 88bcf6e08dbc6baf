"""Keys of `hyperparameters:` and `data:` of a causal language model's experiment."""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import Field

from detalbert.settings.hparams import StepHParams
from detalbert.settings.metric import Metric
from detalbert.settings.sections import (
    Parsers,
    Section,
    Whole,
    changeable,
    parse_section,
    strict_dataclass,
)
from detalbert.settings.text import CorpusConfig, Sources


@strict_dataclass
class DocumentsConfig(CorpusConfig):
    """Documents for a language model; a tokenizer that is trained on them is byte-level."""

    source = "documents"
    held_out_source = "validation_documents"

    article: str = Field("file", pattern=r"^(line|file|blank_line|[1-9][0-9]{0,8} lines)$")
    documents: Sources = None  # one source, or a list of sources
    validation_documents: Sources = None  # held-out; default: a fraction of the documents


@strict_dataclass
class Layout(Section):
    """Numbers of `hyperparameters.layout`, by default chosen for the machines (layout.py).

    Rank r is tensor-parallel rank r mod tensor of data rank r // tensor.
    """

    replicate: Whole = Field(1, gt=0)
    shard: Whole = Field(1, gt=0)
    tensor: Whole = Field(1, gt=0)

    @property
    def slots(self) -> int:
        return self.replicate * self.shard * self.tensor

    @property
    def data_ranks(self) -> int:
        """Number of shares of a global batch."""
        return self.replicate * self.shard

    def data_rank(self, rank: int) -> int:
        """Return the data rank of `rank`, which determines its windows and random numbers."""
        return rank // self.tensor

    def __str__(self) -> str:
        return f"replicate {self.replicate} x shard {self.shard} x tensor {self.tensor}"


def parse_layout(keys: Mapping[str, Any] | Literal["auto"]) -> dict[str, int]:
    """Return the numbers that `keys` set. Raises UserError as `parse_section` does."""
    if keys == "auto":
        return {}
    configured = {key: number for key, number in keys.items() if number != "auto"}
    layout = parse_section(Layout, "hyperparameters.layout", configured)
    return {key: number for key, number in vars(layout).items() if key in configured}


@strict_dataclass
class LmHParams(StepHParams):
    """Hyperparameters of a language model: training, and sharding over the ranks.

    `model_config` has `model_type` (gpt2, gpt_neox, llama or qwen2) and transformers' keys.
    """

    # Or numbers, see Layout.
    layout: dict[str, Any] | Literal["auto"] = changeable("auto")
    # Share of the layers of which only the input is kept, and which run again in backward: 0.5 is
    # every second one, `full` all of them.
    activation_checkpointing: Annotated[float, Field(gt=0, lt=1)] | Literal["none", "full"] = (
        changeable("none")
    )
    across_documents: bool = False  # whether attention and targets cross the end of a document
    max_validation_windows: Whole | None = Field(None, gt=0)

    global_batch_size: int = Field(32, gt=0, le=1_000_000)
    epochs: float = changeable(1, gt=0, le=1_000_000)
    base_learning_rate: float = Field(1e-3, gt=0, le=1e20)
    base_batch_size: int = Field(32, gt=0, le=1_000_000)
    optimizer: Literal["adamw"] = "adamw"
    beta2: float = Field(0.95, ge=0, lt=1)
    weight_decay: float = Field(0.1, ge=0, le=1_000_000)
    warmup_fraction: float = Field(0.02, ge=0, le=1)
    max_seq_length: int = Field(1024, ge=2, le=10_000_000)
    max_tokens_per_forward: int = changeable(4096, gt=0, le=10_000_000)
    # Each layer, with torch.compile; not measured on a GPU.
    compile: bool = changeable(False)

    @property
    def recomputed(self) -> float:
        """Return `activation_checkpointing` as a number from 0 to 1."""
        share = self.activation_checkpointing
        return share if isinstance(share, float) else float(share == "full")

    def check(self) -> None:
        parse_layout(self.layout)
        self.check_one_model()
        super().check()


METRICS = (
    Metric("loss", charted=True, logged=True, smaller_is_better=True),
    Metric("bits_per_byte", charted=True, logged=True, smaller_is_better=True),
    Metric("baseline_bits_per_byte", logged=True, smaller_is_better=True),
    Metric("accuracy", charted=True, logged=True),
    Metric("perplexity", charted=True, logged=True, smaller_is_better=True),
)

# Both raise UserError as `parse_section` does.
parse_documents_config = partial(parse_section, DocumentsConfig, "data")
parse_lm_hparams = partial(parse_section, LmHParams, "hyperparameters")
PARSERS = Parsers(DocumentsConfig, LmHParams, METRICS)
