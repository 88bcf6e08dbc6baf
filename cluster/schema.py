"""A small schema language for YAML, and a check that suggests the nearest valid key.

The keys of experiment and master configs are in keys.yaml.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from detalbert.errors import nearest

PLACEHOLDER = re.compile(r"<<[^<>]*>>")


class Finding(NamedTuple):
    """One thing to fix: where it is, what is wrong and what to do about it.

    A finding is rejected by the master or harms the run. A warning is accepted and harmless: an old
    key, or a custom of this package.
    """

    file: str
    key: str
    problem: str
    warning: bool = False

    def __str__(self) -> str:
        return f"{self.file}: {self.key}: {'warning: ' * self.warning}{self.problem}"


Rule = Callable[[Any], str | None]  # what is wrong with a value, None where nothing is


@dataclass(frozen=True)
class Value:
    """A scalar. Null is accepted unless the key is required: Determined treats it as absent."""

    types: tuple[type, ...]
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[Any, ...] = ()
    hint: str = ""
    rule: Rule | None = None
    null: bool | None = None  # True: a value, in a list too; False: no value, under a key neither

    def name(self) -> str:
        """Return the expected type or choices in words."""
        if self.choices:
            return "one of " + ", ".join(str(choice) for choice in self.choices)
        kinds = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
        kinds |= {dict: "a mapping", list: "a list"}
        kinds = {kind: name for kind, name in kinds.items() if kind in self.types}
        if float in kinds:
            kinds.pop(int, None)
        least = "" if self.minimum is None else f" of at least {self.minimum}"
        return (" or ".join(kinds.values()) or "nothing") + least


@dataclass(frozen=True)
class Map:
    """A mapping of known keys only. A deprecated key is checked too, if `keys` has it."""

    keys: Mapping[str, "Spec"]
    required: tuple[str, ...] = ()
    deprecated: dict[str, str] = field(default_factory=dict)
    rule: Rule | None = None


@dataclass(frozen=True)
class Named:
    """A mapping of arbitrary keys whose values have one schema."""

    item: "Spec"


@dataclass(frozen=True)
class Seq:
    """A list whose items have one schema."""

    item: "Spec"
    rule: Rule | None = None


@dataclass(frozen=True)
class Union_:
    """A mapping whose known keys depend on the value of one of them."""

    key: str
    kinds: dict[str, Map]
    required: bool = True
    default: str = ""  # the kind of a mapping that does not say
    bare: Map | None = None  # the keys of one that does not; None: those of any kind
    rule: Rule | None = None


@dataclass(frozen=True)
class Either:
    """One of several schemas, chosen by the YAML type of the value."""

    forms: dict[type, "Form"]


Form = Value | Map | Named | Seq | Union_
Spec = Form | Either


def above(least: str) -> Rule:
    """Return the rule for a number greater than `least`."""

    def rule(value: Any) -> str | None:
        return None if value > float(least) else f"{value} is not more than {least}; raise it"

    return rule


def check(file: str, key: str, value: Any, spec: Spec) -> Iterator[Finding]:
    """Yield the findings on `value`, found at `key`, where it does not match `spec`."""
    if value is None:
        if isinstance(spec, Value) and spec.null is False:
            yield Finding(file, key, "empty; fill it in or take it out")
        return
    if isinstance(spec, Either):
        spec = spec.forms.get(type(value)) or Value(tuple(spec.forms))
    if isinstance(spec, Value):
        problem = _value_problem(value, spec)
        if problem:
            yield Finding(file, key, problem)
    elif isinstance(spec, Seq):
        yield from _check_seq(file, key, value, spec)
    elif not isinstance(value, dict):
        yield Finding(file, key, f"expected a mapping of keys, got {shown(value)}")
    elif isinstance(spec, Map):
        yield from _check_map(file, key, value, spec)
    elif isinstance(spec, Named):
        for name, inner in value.items():
            yield from _check_item(file, f"{key}.{name}", inner, spec.item)
    else:
        yield from _check_union(file, key, value, spec)


def _check_seq(file: str, key: str, value: Any, spec: Seq) -> Iterator[Finding]:
    if not isinstance(value, list):
        yield Finding(file, key, f"expected a list, got {shown(value)}; begin lines with '-'")
        return
    for number, item in enumerate(value):
        yield from _check_item(file, f"{key}[{number}]", item, spec.item)
    problem = spec.rule(value) if spec.rule else None
    if problem:
        yield Finding(file, key, problem)


def _check_item(file: str, key: str, value: Any, spec: Spec) -> Iterator[Finding]:
    """Check an item as `check` does, but report null unless `spec` allows it."""
    if value is None and not (isinstance(spec, Value) and spec.null):
        yield Finding(file, key, "empty; fill it in or take it out")
    else:
        yield from check(file, key, value, spec)


def _check_map(file: str, key: str, value: dict[str, Any], spec: Map) -> Iterator[Finding]:
    for name, inner in value.items():
        where = f"{key}.{name}" if key else str(name)
        if name in spec.deprecated:
            yield Finding(file, where, f"deprecated: {spec.deprecated[name]}", warning=True)
        if name in spec.keys:
            yield from check(file, where, inner, spec.keys[name])
        elif name not in spec.deprecated:
            yield Finding(file, where, f"unknown key; {nearest(str(name), list(spec.keys))}")
    for name in spec.required:
        if value.get(name) is None:
            yield Finding(file, f"{key}.{name}" if key else name, "missing; set it")
    problem = spec.rule(value) if spec.rule else None
    if problem:
        yield Finding(file, key, problem)


def _check_union(file: str, key: str, value: dict[str, Any], spec: Union_) -> Iterator[Finding]:
    where = f"{key}.{spec.key}"
    kind = value.get(spec.key, spec.default or None)
    if kind is None:
        if spec.required or spec.key in value:
            yield Finding(file, where, f"missing; set one of {', '.join(spec.kinds)}")
        keys = {name: inner for each in spec.kinds.values() for name, inner in each.keys.items()}
        yield from _check_map(file, key, value, spec.bare or Map(keys))
    elif not isinstance(kind, str) or kind not in spec.kinds:
        if not PLACEHOLDER.search(str(kind)):  # reported as a placeholder
            hint = nearest(str(kind), list(spec.kinds))
            yield Finding(file, where, f"{kind!r} is not known here; {hint}")
    else:
        yield from _check_map(file, key, value, spec.kinds[kind])
    problem = spec.rule(value) if spec.rule else None
    if problem:
        yield Finding(file, key, problem)


def _value_problem(value: Any, spec: Value) -> str | None:
    right_type = isinstance(value, spec.types) and (
        not isinstance(value, bool) or bool in spec.types
    )
    whole = isinstance(value, float) and value.is_integer() and int in spec.types
    hint = f"; {spec.hint}" if spec.hint else ""
    if isinstance(value, str) and PLACEHOLDER.search(value):
        return None  # reported as a placeholder, whatever it stands for
    if not right_type and not whole:
        return f"expected {spec.name()}, got {shown(value)}{hint}"
    if spec.choices and value not in spec.choices:
        return f"{value!r} is not {spec.name()}{hint}"
    if isinstance(value, (int, float)) and spec.minimum is not None and value < spec.minimum:
        return f"{value} is less than {spec.minimum}; raise it{hint}"
    if isinstance(value, (int, float)) and spec.maximum is not None and value > spec.maximum:
        return f"{value} is more than {spec.maximum}; lower it{hint}"
    return spec.rule(value) if spec.rule else None


def placeholders(file: str, key: str, value: Any) -> Iterator[Finding]:
    """Yield a finding for every `<<...>>` that is not filled in."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from placeholders(file, f"{key}.{name}" if key else str(name), inner)
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from placeholders(file, f"{key}[{number}]", inner)
    elif isinstance(value, str):
        for found in PLACEHOLDER.findall(value):
            yield Finding(file, key, f"placeholder {found} is not filled in")


def mapping(value: Any) -> dict[str, Any]:
    """Return `value` if it is a mapping, else an empty one: its type is reported elsewhere."""
    return value if isinstance(value, dict) else {}


def mappings(value: Any) -> list[dict[str, Any]]:
    """Return the mappings in `value` if it is a list, else an empty list."""
    return [item for item in (value if isinstance(value, list) else ()) if isinstance(item, dict)]


def whole(value: Any) -> int | None:
    """Return `value` if it is a whole number (8.0 too, as in the master), else None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return int(value) if value == value // 1 else None


def shown(value: Any) -> str:
    """Return `value` as messages show it, at most 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
