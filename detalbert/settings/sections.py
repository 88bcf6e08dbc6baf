"""Sections of a YAML config as dataclasses, with keys, types and limits checked.

A dataclass is the only list of a section's keys: its annotations are their types, its defaults
theirs, and a field's metadata, by `setting`, their limits. All problems of a section are found
before one is raised. A library such as pydantic would do this too; it is not in the images of a
cluster, and its messages have several lines.
"""

import dataclasses
import math
import operator
import os
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, Union

from detalbert.errors import SectionError, UnknownKey, UserError
from detalbert.settings.values import Config

# What a limit is called in an error, and when a value keeps it.
_LIMITS = {
    "gt": ("greater than", operator.gt),
    "ge": ("at least", operator.ge),
    "lt": ("less than", operator.lt),
    "le": ("at most", operator.le),
}


def setting(
    default: Any = dataclasses.MISSING,
    *,
    gt: float | None = None,
    ge: float | None = None,
    lt: float | None = None,
    le: float | None = None,
    choices: tuple[str, ...] | None = None,
    changeable: bool | None = None,
) -> Any:
    """Return the dataclass field of a key: its default, and the limits of its values. A subclass
    that changes the default keeps the limits that it does not set.

    Args:
        default: if there is none, the config must have the key.
        gt, ge, lt, le: numbers that a value is greater than, at least, less than, at most. None,
            and words beside a number ("auto"), are always valid.
        choices: the valid texts; default: all.
        changeable: whether a run that is resumed may have another value: one that changes how a run
            is carried out, or at most its rounding, not what it computes.
    """
    limits = {"gt": gt, "ge": ge, "lt": lt, "le": le, "choices": choices, "changeable": changeable}
    metadata = {name: limit for name, limit in limits.items() if limit is not None}
    return dataclasses.field(default=default, metadata=metadata)


class Section:
    """Base class of the dataclasses that `parse_section` creates."""

    def check(self) -> None:
        """Raise UserError for values that contradict each other."""


class Parsers(NamedTuple):
    """Parsers of the sections of a workload's config, which import no heavy library."""

    data: Callable[[object], Any]  # `data:`
    hyperparameters: Callable[[object], Any]


T = TypeVar("T", bound=Section)


def parse_section(cls: type[T], section: str, values: object) -> T:
    """Return a config section as a dataclass, its keys, types and limits checked.

    An unknown key with the value null is ignored: `det experiment continue` keeps every key that a
    config ever had, so only null can remove a wrong one.

    Args:
        cls: the dataclass.
        section: where the section is, such as `data`, for the errors.
        values: of the section, as the config has them.

    Raises:
        SectionError: values are unknown, missing, wrongly typed or impossible, each named.
        UserError: it is no mapping, or its values contradict each other.
    """
    if not isinstance(values, Mapping):
        raise UserError(f"expected a mapping of keys, got {type(values).__name__}", key=section)
    converted: Config = {}
    problems = list(_convert(cls, section=section, values=values, converted=converted))
    if problems:
        raise SectionError(problems)
    parsed = cls(**converted)
    parsed.check()
    return parsed


def _convert(
    cls: type[Section], section: str, values: Mapping[str, object], converted: Config
) -> Iterator[UserError]:
    """Yield every problem of the keys in `values`; put the converted values into `converted`."""
    # Unknown keys, in the order of the config.
    fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]  # every Section is one
    for key, value in values.items():
        if key not in fields and value is not None:
            name = str(key)  # YAML's keys may be numbers
            yield UnknownKey(name, section=section, known=fields, hint=hint(name, known=fields))

    # Missing values and wrong ones, in the order of the dataclass.
    annotations = typing.get_type_hints(cls)
    for key, field in fields.items():
        place = f"{section}.{key}"
        if field.default is dataclasses.MISSING and values.get(key) is None:
            yield UserError("missing", key=place, cure="set it in the config")
        elif key in values:
            try:
                converted[key] = _typed(values[key], annotation=annotations[key], key=place)
                _check_limits(converted[key], limits=limits_of(cls, key), key=place)
            except UserError as problem:
                yield problem


@cache
def _synonyms() -> Config:
    from detalbert.settings.yaml_files import read_yaml  # YAML may be missing in a task's image

    return read_yaml(Path(__file__).with_name("synonyms.yaml"))


def hint(key: str, known: Iterable[str]) -> str | None:
    """Return what to use for `key`, a word of another trainer; None if synonyms.yaml lacks it."""
    synonyms = _synonyms()
    word = key.lower().replace("-", "_")
    for name, words in synonyms["names"].items():
        if word in words and name in known:
            note = synonyms["notes"].get(name, "")
            if name.endswith("_period"):  # other trainers count epochs
                note = "It counts steps"
            return f"did you mean {name!r}? {note}".rstrip()
    # Of a word without a key here there may be advice all the same.
    return synonyms["advice"].get(word)


def limits_of(cls: type, key: str) -> Config:
    """Return what `setting` says of a key of dataclass `cls`, including what its bases say."""
    limits: Config = {}
    for base in reversed(cls.__mro__):
        fields = base.__dict__.get("__dataclass_fields__", {})
        if key in fields:
            limits.update(fields[key].metadata)
    return limits


def changeable_keys(cls: type[Section]) -> set[str]:
    """Return the keys whose values may be others when a run is resumed."""
    keys = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]  # every Section is one
    return {key for key in keys if limits_of(cls, key).get("changeable")}


_LARGEST = 2**63  # of whole numbers, as in Go
# What the types of keys are called in errors.
_NAMES = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    list[Any]: "a list",
}


def _typed(value: object, annotation: object, key: str) -> object:
    """Return `value` as a key's annotation says; numbers in text too, as PyYAML reads 5e-5 (no
    dot). Raises UserError if it is of another type.
    """
    words, kinds = _options(annotation)
    if value in words:
        return value
    for kind in kinds:
        converted = _as_kind(value, kind)
        if converted is not None:
            return converted
    names = [_NAMES.get(kind, "a mapping of keys") for kind in kinds]
    names += [word for word in words if word]
    raise UserError(f"expected {' or '.join(names)}, got {value!r:.60}", key=key)


def _options(annotation: object) -> tuple[list[str | None], list[type]]:
    """Return the words that an annotation allows (of Literal, and None) and its types.

    `int | Literal["auto"]` gives (["auto"], [int]), `str | None` gives ([None], [str]).
    """
    is_union = typing.get_origin(annotation) in (types.UnionType, Union)
    options: tuple[Any, ...] = typing.get_args(annotation) if is_union else (annotation,)
    words: list[str | None] = []
    kinds: list[type] = []
    for option in options:
        if option is type(None):
            words.append(None)
        elif typing.get_origin(option) is typing.Literal:
            words += typing.get_args(option)
        else:
            kinds.append(option)
    return words, kinds


def _as_kind(value: object, kind: type) -> object:
    """Return `value` as a value of type `kind`; None if it is none."""
    is_bool = isinstance(value, bool)  # to Python it is a number, too
    if kind is float:
        return None if is_bool else _finite(value)
    if kind is int:
        if is_bool or not isinstance(value, (int, float)):
            return None
        # 8.0 is a whole number, as in JSON; first the size, for int() fails on infinity.
        is_whole = abs(value) < _LARGEST and value == int(value)
        return int(value) if is_whole else None
    if kind is str and isinstance(value, str) and value.startswith("~/"):
        return os.path.expanduser(value)  # no shell does it behind "key="
    container = typing.get_origin(kind)  # list, of list[Any]
    is_kind = isinstance(value, container or kind)
    return value if is_kind and value != "" else None


def _finite(value: object) -> float | None:
    """Return a number, or a text that is one, as a finite float; None for anything else."""
    if not isinstance(value, (str, int, float)):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _check_limits(value: Any, limits: Config, key: str) -> None:
    """Raise UserError if a value is beyond the limits of its key."""
    is_word = isinstance(value, str) and "choices" not in limits  # "auto", beside a number
    if value is None or is_word:
        return
    choices = limits.get("choices", [value])
    if value not in choices:
        raise UserError(f"{value!r} is not one of {', '.join(choices)}", key=key)

    # An error names all limits of the key: "must be greater than 0 and at most 1".
    bounds = [name for name in _LIMITS if name in limits]
    wanted = " and ".join(f"{_LIMITS[name][0]} {limits[name]}" for name in bounds)
    for name in bounds:
        _, holds = _LIMITS[name]
        if not holds(value, limits[name]):
            raise UserError(f"{value} must be {wanted}", key=key)
