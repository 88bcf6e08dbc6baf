"""Keys of `hyperparameters:` and `data:` of a causal language model's experiment."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from detalbert.settings.hparams import StepHParams
from detalbert.settings.sections import Parsers, Section, parse_section, setting
from detalbert.settings.text import parse_documents_config


@dataclass(frozen=True)
class Layout(Section):
    """Numbers of `hyperparameters.layout`, by default chosen for the machines (layout.py).

    Rank r is tensor-parallel rank r mod tensor of data rank r // tensor.
    """

    replicate: int = setting(1, gt=0, le=65_536)
    shard: int = setting(1, gt=0, le=65_536)
    tensor: int = setting(1, gt=0, le=65_536)

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


@dataclass(frozen=True)
class LmHParams(StepHParams):
    """Hyperparameters of a language model: training, and sharding over the ranks.

    `model_config` has `model_type` (gpt2, gpt_neox, llama or qwen2) and transformers' keys.
    """

    # Or numbers, see Layout.
    layout: dict[str, Any] | Literal["auto"] = setting("auto", changeable=True)
    # Share of the layers of which only the input is kept, and which run again in backward: 0.5 is
    # every second one, `full` all of them.
    activation_checkpointing: float | Literal["none", "full"] = setting(
        "none", gt=0, lt=1, changeable=True
    )
    across_documents: bool = False  # whether attention and targets cross the end of a document
    max_validation_windows: int | None = setting(None, gt=0)
    # Continuations of held-out text at a validation.
    samples: int = setting(0, ge=0, le=16, changeable=True)

    global_batch_size: int = 32
    epochs: float = 1
    base_learning_rate: float = 1e-3
    base_batch_size: int = 32
    optimizer: str = setting("adamw", choices=("adamw", "muon"))
    beta2: float = 0.95
    weight_decay: float = 0.1
    warmup_fraction: float = 0.02
    max_seq_length: int = setting(1024, ge=2)
    max_tokens_per_forward: int = setting(4096)
    allreduce_dtype: str = setting("fp32", choices=("fp32",))
    compile: bool = False  # each layer, with torch.compile; not measured on a GPU

    @property
    def recomputed(self) -> float:
        """Return `activation_checkpointing` as a number from 0 to 1."""
        share = self.activation_checkpointing
        return share if isinstance(share, float) else float(share == "full")

    def check(self) -> None:
        parse_layout(self.layout)
        self.check_one_model()
        super().check()


# Raises UserError as `parse_section` does.
parse_lm_hparams = partial(parse_section, LmHParams, "hyperparameters")
PARSERS = Parsers(parse_documents_config, parse_lm_hparams)
