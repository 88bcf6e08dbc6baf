"""A section of a YAML config as a dataclass: its keys, types and limits checked."""

import contextlib
import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, Union

from detalbert.errors import UserError, unknown_key

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


def parse_section(
    cls: type, section: str, values: Any, choices: Mapping[str, tuple[str, ...]] | None = None
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
    words: tuple[Any, ...] = ()
    if typing.get_origin(wanted) in (types.UnionType, Union):
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
    section: str, key: str, value: Any, choices: Mapping[str, tuple[str, ...]]
) -> None:
    if value is None or value == "auto":
        return
    if key in _POSITIVE and not value > 0:
        raise UserError(f"{section}.{key}: {value} must be greater than 0")
    if key in _NOT_NEGATIVE and value < 0:
        raise UserError(f"{section}.{key}: {value} must not be negative")
    if key in choices and value not in choices[key]:
        raise UserError(f"{section}.{key}: {value!r} is not one of {', '.join(choices[key])}")
