"""The keys of `hyperparameters:` and `data:`, their types, defaults and limits.

Nothing here imports the rest of the package: every other module may raise `UserError`
and take an `HParams`. Defaults are the published single-GPU recipe for albert-xxlarge-v2.
"""

import contextlib
import dataclasses
import difflib
import math
import typing
from dataclasses import dataclass
from typing import Any, Dict, List, Literal, Mapping, Optional, Tuple, Union


class UserError(Exception):
    """A mistake the user can mend. The text is one line: what is wrong, where, what to do.

    `train.py` prints it to standard error as `train.py: error: ...` and exits with status 2.
    """

    kind = "error"

    def __init__(self, text: str) -> None:
        super().__init__(" ".join(text.splitlines()))


class Unavailable(UserError):
    """Something outside that another try may find: a network, a hub, room on another machine.

    Printed as `train.py: unavailable: ...`, so that the experiments' log policies tell it from a
    mistake: Determined starts such a trial again, up to `max_restarts` times.
    """

    kind = "unavailable"


def unknown_key(key: str, section: str, known: List[str]) -> UserError:
    """The error for a key that nobody reads, with the nearest known one."""
    near = difflib.get_close_matches(key, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(sorted(known))}"
    return UserError(f"{section}.{key}: unknown key; {hint}")


@dataclass(frozen=True)
class DataConfig:
    """Where questions come from. `train` and `validation` are each a JSON file of SQuAD's shape,
    an official file name (downloaded when absent), a `datasets` hub name, or `generated`."""

    train: str
    validation: str
    tokenizer: Optional[str] = None  # a folder or hub name; default: the one beside the model
    cache_dir: str = ".cache"
    skip_invalid: bool = False  # count and skip faulty questions instead of refusing the file
    max_train_examples: Optional[int] = None
    max_validation_examples: Optional[int] = None


@dataclass(frozen=True)
class StepHParams:
    """What every workload's optimizer step depends on. Periods and steps are optimizer steps."""

    # The model: a hub name or folder, or a model config to start from random weights.
    model: Optional[str] = None
    model_config: Optional[Dict[str, Any]] = None

    # The schedule. `max_steps` wins over `epochs`.
    global_batch_size: int = 48  # windows per optimizer step, over all slots
    epochs: float = 2
    max_steps: Optional[int] = None

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
    max_tokens_per_forward: Union[int, Literal["auto"]] = 4096  # real tokens in a micro-batch
    compile: Optional[bool] = None  # the layers, with torch.compile; default: on a GPU
    allreduce_dtype: str = "fp32"  # gradients between slots; sums are taken in fp32 always
    seed: int = 42
    num_workers: Optional[int] = None  # loaders of one slot; default: by the machine's cores
    checkpoint_period: Optional[int] = None  # default: once per epoch
    validation_period: Optional[int] = None  # default: once per epoch
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


_POSITIVE = {
    "global_batch_size", "epochs", "max_steps", "base_learning_rate", "base_batch_size", "lr_scale",
    "max_seq_length", "max_query_length", "n_best_size", "max_answer_length",
    "max_tokens_per_forward", "checkpoint_period", "validation_period", "reporting_period",
    "max_train_examples", "max_validation_examples",
    "shard_mib", "cache_gib", "max_ngram", "masked_fraction",  # pretraining's
}  # fmt: skip
_NOT_NEGATIVE = {"weight_decay", "max_grad_norm", "doc_stride", "seed", "num_workers"}
_NOT_NEGATIVE |= {"profile_steps", "span_fraction"}
_CHOICES = {
    "optimizer": ("radam", "adamw"),
    "precision": ("auto", "fp32", "bf16", "fp16", "fp8"),
    "allreduce_dtype": ("fp32", "bf16", "fp16"),
}


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


def parse_section(
    cls: type, section: str, values: Any, choices: Optional[Mapping[str, Tuple[str, ...]]] = None
) -> Any:
    """A config section as dataclass `cls`, its keys, types and limits checked.

    Args: choices: the texts that a key may hold, where they are other than fine-tuning's.
    Raises: UserError naming the key.
    """
    if not isinstance(values, Mapping):
        raise UserError(f"{section}: expected a mapping of keys, got {type(values).__name__}")
    fields = {field.name: field for field in dataclasses.fields(cls)}
    types = typing.get_type_hints(cls)
    for key in values:
        if key not in fields:
            raise unknown_key(str(key), section, list(fields))
    for name, field in fields.items():
        if field.default is dataclasses.MISSING and values.get(name) is None:
            raise UserError(f"{section}.{name}: missing; set it in the config")
    checked = {}
    for key, value in values.items():
        checked[key] = _typed(f"{section}.{key}", value, types[key])
        _check_limits(section, key, checked[key], {**_CHOICES, **(choices or {})})
    return cls(**checked)


def _typed(path: str, value: Any, wanted: Any) -> Any:
    """`value` as `wanted`. YAML reads 5e-5 (no dot) as text, so numbers in text are taken too."""
    words: Tuple[Any, ...] = ()
    if typing.get_origin(wanted) is Union:
        wanted, other = typing.get_args(wanted)
        words = (None,) if other is type(None) else typing.get_args(other)
        if value in words:
            return value
    origin = typing.get_origin(wanted) or wanted
    if wanted is float and not isinstance(value, bool):
        with contextlib.suppress(TypeError, ValueError):
            if math.isfinite(value := float(value)):
                return value
    elif isinstance(value, origin) and not (wanted is int and isinstance(value, bool)):
        return value
    elif wanted is int and isinstance(value, float) and value.is_integer():
        return int(value)
    name = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    names = [name.get(wanted, "a mapping of keys"), *filter(None, words)]
    raise UserError(f"{path}: expected {' or '.join(names)}, got {value!r}")


def _check_limits(
    section: str, key: str, value: Any, choices: Mapping[str, Tuple[str, ...]]
) -> None:
    if value is None or value == "auto":
        return
    if key in _POSITIVE and not value > 0:
        raise UserError(f"{section}.{key}: {value} must be greater than 0")
    if key in _NOT_NEGATIVE and value < 0:
        raise UserError(f"{section}.{key}: {value} must not be negative")
    if key in choices and value not in choices[key]:
        raise UserError(f"{section}.{key}: {value!r} is not one of {', '.join(choices[key])}")
