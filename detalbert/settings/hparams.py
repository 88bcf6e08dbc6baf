"""The keys of `hyperparameters:` and `data:`, their types, defaults and limits.

Nothing here imports the rest of the package: every other module may raise `UserError`
and take an `HParams`. Defaults are the published single-GPU recipe for albert-xxlarge-v2.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from detalbert.errors import UserError
from detalbert.settings.sections import parse_section


@dataclass(frozen=True)
class DataConfig:
    """Where questions come from. `train` and `validation` are each a JSON file of SQuAD's shape,
    an official file name (downloaded when absent), a `datasets` hub name, or `generated`."""

    train: str
    validation: str
    tokenizer: str | None = None  # a folder or hub name; default: the one beside the model
    cache_dir: str = ".cache"
    skip_invalid: bool = False  # count and skip faulty questions instead of refusing the file
    max_train_examples: int | None = None
    max_validation_examples: int | None = None


@dataclass(frozen=True)
class StepHParams:
    """What every workload's optimizer step depends on. Periods and steps are optimizer steps."""

    # The model: a hub name or folder, or a model config to start from random weights.
    model: str | None = None
    model_config: dict[str, Any] | None = None

    # The schedule. `max_steps` wins over `epochs`.
    global_batch_size: int = 48  # windows per optimizer step, over all slots
    epochs: float = 2
    max_steps: int | None = None

    # learning rate = base_learning_rate * global_batch_size / base_batch_size * lr_scale
    base_learning_rate: float = 5e-5
    base_batch_size: int = 48
    lr_scale: float = 1.0
    optimizer: str = "radam"
    beta2: float = 0.999  # of its mean of squared gradients
    weight_decay: float = 0.0
    warmup_fraction: float = 0.1
    max_grad_norm: float = 1.0

    # How it runs.
    max_seq_length: int = 384  # tokens of the longest window
    precision: str = "auto"
    max_tokens_per_forward: int | Literal["auto"] = 4096  # real tokens in a micro-batch
    compile: bool | None = None  # the layers, with torch.compile; default: on a GPU
    allreduce_dtype: str = "fp32"  # gradients between slots; sums are taken in fp32 always
    seed: int = 42
    num_workers: int | None = None  # loaders of one slot; default: by the machine's cores
    checkpoint_period: int | None = None  # default: once per epoch
    validation_period: int | None = None  # default: once per epoch
    reporting_period: int = 10
    profile_steps: int = 0  # traced by rank 0 after a warm-up, see profiling.py
    spot_notice: bool = False  # watch for EC2's notice that it takes the machine back

    def learning_rate(self) -> float:
        """Peak learning rate by the linear scaling rule (Goyal et al. 2017, arXiv:1706.02677).

        5e-5 at 48 windows, scaled to 256 windows with lr_scale 0.75, is 2.0e-4.
        """
        return (
            self.base_learning_rate * self.global_batch_size / self.base_batch_size * self.lr_scale
        )


@dataclass(frozen=True)
class HParams(StepHParams):
    """`hyperparameters:` of an experiment that fine-tunes on SQuAD: windows and answers."""

    doc_stride: int = 128  # tokens that two neighbouring windows share
    max_query_length: int = 64
    n_best_size: int = 20
    max_answer_length: int = 30
    null_score_diff_threshold: float = 0.0


def parse_hparams(values: Mapping[str, Any]) -> HParams:
    """`hyperparameters:` as a frozen dataclass.

    Raises UserError naming the key for an unknown, missing, wrongly typed or impossible value.
    """
    hparams = parse_section(HParams, "hyperparameters", values)
    if (hparams.model is None) == (hparams.model_config is None):
        raise UserError(
            "hyperparameters.model: set exactly one of 'model' (a hub name or folder) and "
            "'model_config' (a model from random weights)"
        )
    if hparams.max_query_length + 4 > hparams.max_seq_length:
        raise UserError(
            f"hyperparameters.max_query_length: a question of {hparams.max_query_length} tokens "
            f"leaves no room in max_seq_length {hparams.max_seq_length}; lower it"
        )
    check_step(hparams)
    return hparams


def check_step(hparams: StepHParams) -> None:
    """Refuse a warm-up, a mean of squares or a token budget that no step can have."""
    if hparams.warmup_fraction < 0 or hparams.warmup_fraction > 1:
        raise UserError(
            f"hyperparameters.warmup_fraction: {hparams.warmup_fraction} is not between 0 and 1"
        )
    if hparams.beta2 < 0 or hparams.beta2 >= 1:
        raise UserError(
            f"hyperparameters.beta2: {hparams.beta2} is not from 0 to below 1; use 0.999 or 0.98"
        )
    budget = hparams.max_tokens_per_forward
    if budget != "auto" and budget < hparams.max_seq_length:
        raise UserError(
            f"hyperparameters.max_tokens_per_forward: {hparams.max_tokens_per_forward} is less "
            f"than one window (max_seq_length {hparams.max_seq_length}); raise it"
        )


def parse_data_config(values: Mapping[str, Any]) -> DataConfig:
    """`data:` as a frozen dataclass. Raises UserError as `parse_hparams` does."""
    return parse_section(DataConfig, "data", values)
