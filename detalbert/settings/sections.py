"""Sections of a YAML config as dataclasses, with keys, types and limits checked.

A dataclass is the only list of a section's keys: its annotations are their types, its defaults
theirs, and a field's metadata their limits. All problems of a section are found before one is
raised. A library such as pydantic would do this too; it is not in the images of a cluster, and its
messages have several lines.
"""

import dataclasses
import math
import operator
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, Union

from detalbert.errors import SectionError, UnknownKey, UserError

# What a limit is called in an error, and when a value keeps it.
_LIMITS = {
    "above": ("greater than", operator.gt),
    "least": ("at least", operator.ge),
    "below": ("less than", operator.lt),
    "most": ("at most", operator.le),
}


def limited(default: Any = dataclasses.MISSING, **limits: Any) -> Any:
    """Return a dataclass field with limited numbers or texts; None and words beside a number
    ("auto") are always valid.

    `limits` are `above`, `least`, `below`, `most` (numbers) or `choices` (a tuple of texts). A
    subclass that changes the default keeps the limits that it does not set.
    """
    return dataclasses.field(default=default, metadata=limits)


class Section:
    """Base class of the dataclasses that `parse_section` creates."""

    def check(self) -> None:
        """Raise UserError for values that contradict each other."""


class Parsers(NamedTuple):
    """Parsers of the sections of a workload's config, which import no heavy library."""

    data: Callable[[Any], Any]  # `data:`
    hyperparameters: Callable[[Mapping[str, Any]], Any]


T = TypeVar("T", bound=Section)


def parse_section(cls: type[T], section: str, values: object) -> T:
    """Return a config section as dataclass `cls`, its keys, types and limits checked.

    An unknown key with the value null is ignored: `det experiment continue` keeps every key that a
    config ever had, so only null can remove a wrong one. Raises SectionError for unknown, missing,
    wrongly typed or impossible values, each named, UserError for no mapping and contradictions.
    """
    if not isinstance(values, Mapping):
        raise UserError(f"expected a mapping of keys, got {type(values).__name__}", key=section)
    converted: dict[str, Any] = {}
    problems = list(_convert(cls, section, values, converted))
    if problems:
        raise SectionError(problems)
    parsed = cls(**converted)
    parsed.check()
    return parsed


def _convert(
    cls: type[Section], section: str, values: Mapping[str, Any], converted: dict[str, Any]
) -> Iterator[UserError]:
    """Yield every problem of the keys in `values`; put the converted values into `converted`."""
    fields: dict[str, Any] = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]  # every Section is one
    for key, value in values.items():
        if key not in fields and value is not None:
            yield UnknownKey(str(key), section, known=fields, hint=hint(str(key), known=fields))
    kinds = typing.get_type_hints(cls)
    for key, field in fields.items():
        where = f"{section}.{key}"
        if field.default is dataclasses.MISSING and values.get(key) is None:
            yield UserError("missing", key=where, cure="set it in the config")
        elif key in values:
            try:
                converted[key] = _typed(values[key], kinds[key], path=where)
                _check_limits(converted[key], limits_of(cls, key), path=where)
            except UserError as problem:
                yield problem


@cache
def _synonyms() -> dict[str, Any]:
    from detalbert.settings.yaml_files import read_yaml  # YAML may be missing in a task's image

    return read_yaml(Path(__file__).with_name("synonyms.yaml"))


def hint(key: str, known: Iterable[str]) -> str | None:
    """Return what to use for `key`, a word of another trainer; None if synonyms.yaml lacks it."""
    synonyms = _synonyms()
    word = key.lower().replace("-", "_")
    for name, words in synonyms["names"].items():
        if word in words and name in known:
            note = synonyms["notes"].get(name, "")
            if name.endswith("_period"):
                note = "It counts steps"
            return f"did you mean {name!r}? {note}".rstrip()
    return synonyms["advice"].get(word)


def limits_of(cls: type, key: str) -> dict[str, Any]:
    """Return the limits of a key of dataclass `cls`, including those of its bases."""
    limits: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        fields = base.__dict__.get("__dataclass_fields__", {})
        if key in fields:
            limits.update(fields[key].metadata)
    return limits


_LARGEST = 2**63  # of whole numbers
_NAMES = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    list[Any]: "a list",
}


def _typed(value: object, annotation: Any, path: str) -> Any:
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
    names += filter(None, words)
    raise UserError(f"expected {' or '.join(names)}, got {value!r:.60}", key=path)


def _options(annotation: Any) -> tuple[list[Any], list[Any]]:
    """Return the words that an annotation allows (of Literal, and None) and its types."""
    is_union = typing.get_origin(annotation) in (types.UnionType, Union)
    options = typing.get_args(annotation) if is_union else [annotation]
    words: list[Any] = []
    kinds: list[Any] = []
    for option in options:
        if option is type(None):
            words.append(None)
        elif typing.get_origin(option) is typing.Literal:
            words += typing.get_args(option)
        else:
            kinds.append(option)
    return words, kinds


def _as_kind(value: object, kind: Any) -> Any:
    """Return `value` as a value of type `kind`; None if it is none."""
    is_bool = isinstance(value, bool)
    if kind is float:
        return None if is_bool else _finite(value)
    if kind is int:
        if is_bool or not isinstance(value, (int, float)):
            return None
        is_whole = abs(value) < _LARGEST and value == int(value)
        return int(value) if is_whole else None
    is_kind = isinstance(value, typing.get_origin(kind) or kind)
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


def _check_limits(value: Any, limits: Mapping[str, Any], path: str) -> None:
    """Raise UserError if a value is beyond the limits of its key."""
    if value is None or isinstance(value, str) and "choices" not in limits:
        return
    if value not in limits.get("choices", [value]):
        raise UserError(f"{value!r} is not one of {', '.join(limits['choices'])}", key=path)
    bounds = [name for name in _LIMITS if name in limits]
    wanted = " and ".join(f"{_LIMITS[name][0]} {limits[name]}" for name in bounds)
    for name in bounds:
        _, holds = _LIMITS[name]
        if not holds(value, limits[name]):
            raise UserError(f"{value} must be {wanted}", key=path)
