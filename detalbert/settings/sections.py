"""Sections of a YAML config as dataclasses, with keys, types and limits checked."""

import contextlib
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


def parse_section(cls: type[T], section: str, values: Any) -> T:
    """Return a config section as dataclass `cls`, its keys, types and limits checked.

    An unknown key with the value null is ignored: `det experiment continue` keeps every key that a
    config ever had, so only null can remove a wrong one. Raises SectionError for unknown, missing,
    wrongly typed or impossible values, each named, UserError for no mapping and contradictions.
    """
    if not isinstance(values, Mapping):
        raise UserError(f"expected a mapping of keys, got {type(values).__name__}", key=section)
    checked: dict[str, Any] = {}
    if problems := list(_walk(cls, section, values, checked)):
        raise SectionError(problems)
    parsed = cls(**checked)
    parsed.check()
    return parsed


def _walk(
    cls: type[Section], section: str, values: Mapping[str, Any], checked: dict[str, Any]
) -> Iterator[UserError]:
    """Yield every problem of the keys in `values`; put the converted values into `checked`."""
    fields: dict[str, Any] = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]  # every Section is one
    for key, value in values.items():
        if key not in fields and value is not None:
            yield UnknownKey(str(key), section, fields, hint(str(key), fields))
    hints = typing.get_type_hints(cls)
    for key, field in fields.items():
        where = f"{section}.{key}"
        if field.default is dataclasses.MISSING and values.get(key) is None:
            yield UserError("missing", key=where, cure="set it in the config")
        elif key in values:
            try:
                checked[key] = _typed(where, values[key], hints[key])
                _check_limits(where, checked[key], limits_of(cls, key))
            except UserError as problem:
                yield problem


@cache
def _synonyms() -> dict[str, Any]:
    from detalbert.settings.yaml_files import read_yaml  # YAML may be missing in a task's image

    return read_yaml(Path(__file__).with_name("synonyms.yaml"))


def hint(key: str, known: Iterable[str]) -> str | None:
    """Return what to use for `key`, a word of another trainer; None if synonyms.yaml lacks it."""
    table, word = _synonyms(), key.lower().replace("-", "_")
    for name, words in table["names"].items():
        if word in words and name in known:
            note = "It counts steps" if name.endswith("_period") else table["notes"].get(name, "")
            return f"did you mean {name!r}? {note}".rstrip()
    return table["advice"].get(word)


def limits_of(cls: type, key: str) -> dict[str, Any]:
    """Return the limits of a key of dataclass `cls`, including those of its bases."""
    bases = (base.__dict__.get("__dataclass_fields__", {}) for base in reversed(cls.__mro__))
    found = [fields[key].metadata for fields in bases if key in fields]
    return {name: value for metadata in found for name, value in metadata.items()}


_LARGEST = 2**63  # of whole numbers


def _typed(path: str, value: Any, wanted: Any) -> Any:
    """Convert `value` to `wanted`; numbers in text too, as PyYAML reads 5e-5 (no dot)."""
    words, kinds = list[Any](), list[Any]()
    union = typing.get_origin(wanted) in (types.UnionType, Union)
    for option in typing.get_args(wanted) if union else (wanted,):
        if option is type(None) or typing.get_origin(option) is typing.Literal:
            words += typing.get_args(option) or [None]
        else:
            kinds.append(option)
    if value in words:
        return value
    for kind in kinds:
        if kind is float and not isinstance(value, bool):
            with contextlib.suppress(TypeError, ValueError, OverflowError):
                if math.isfinite(number := float(value)):
                    return number
        elif kind is int:
            number = value if isinstance(value, (int, float)) else math.inf
            if not isinstance(value, bool) and abs(number) < _LARGEST and number == int(number):
                return int(number)
        elif isinstance(value, typing.get_origin(kind) or kind) and value != "":
            return value
    name = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    name[list[Any]] = "a list"
    names = [name.get(kind, "a mapping of keys") for kind in kinds] + list(filter(None, words))
    raise UserError(f"expected {' or '.join(names)}, got {value!r:.60}", key=path)


def _check_limits(path: str, value: Any, limits: Mapping[str, Any]) -> None:
    if value is None or isinstance(value, str) and "choices" not in limits:
        return
    if value not in limits.get("choices", (value,)):
        raise UserError(f"{value!r} is not one of {', '.join(limits['choices'])}", key=path)
    bounds = {name: _LIMITS[name] for name in _LIMITS if name in limits}
    if not all(holds(value, limits[name]) for name, (_, holds) in bounds.items()):
        wanted = " and ".join(f"{text} {limits[name]}" for name, (text, _) in bounds.items())
        raise UserError(f"{value} must be {wanted}", key=path)
