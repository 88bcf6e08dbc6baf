"""Findings of the checker, and those of the JSON Schemas of configs in cluster/schema/."""

import functools
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from detalbert.errors import nearest
from detalbert.settings.yaml_files import read_yaml

# Names in our files that a user replaces by their own.
PLACEHOLDER = re.compile(r"<<[^<>]*>>|(?<![\w.-])my-(?:bucket|pretrained-checkpoint)(?![\w.-])")
_TYPES = {
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "object": "a mapping of keys",
    "array": "a list",
}
_WARNINGS = ("deprecationMessage", "x-warning", "x-wanted")


class Finding(NamedTuple):
    """One thing to fix: where it is, what is wrong and what to do about it.

    A finding is rejected by the master or harms the run. A warning is accepted and harmless: an old
    key, a custom of this package, or a key that only the fork accepts.
    """

    key: str
    problem: str
    warning: bool = False
    file: str = ""  # where the key is, as soon as the checker is done with the file

    def __str__(self) -> str:
        return f"{self.file}: {self.key}: {'warning: ' * self.warning}{self.problem}"


def check(config: dict[str, Any], kind: str) -> Iterator[Finding]:
    """Yield the findings on a config, where it does not match the schema `kind`.yaml."""
    errors = list(_validator(kind).iter_errors(_without_nulls(config)))
    mistyped = {tuple(error.absolute_path) for error in errors if error.validator == "type"}
    found: dict[Finding, None] = {}  # two branches of a schema may say the same
    for error in errors:
        told = error.validator in ("type", *_WARNINGS)
        if told or tuple(error.absolute_path) not in mistyped:
            found |= dict.fromkeys(_findings(error))
    yield from found


@functools.cache
def load_schema(kind: str) -> dict[str, Any]:
    """Return the schema `kind`.yaml."""
    return read_yaml(Path(__file__).with_suffix("") / f"{kind}.yaml")


@functools.cache
def _validator(kind: str) -> Any:
    """Return jsonschema's validator with the keywords of our schemas."""
    import jsonschema
    import referencing.jsonschema

    from cluster import rules

    def rule(validator: Any, name: Any, value: Any, schema: dict[str, Any]) -> Iterator[Any]:
        name, *more = [name] if isinstance(name, str) else name
        of_type = validator.is_type(value, schema.get("type", "object"))
        if of_type and (problem := getattr(rules, name)(value, *more)):
            yield jsonschema.ValidationError(problem)

    def warning(validator: Any, text: str, value: Any, schema: dict[str, Any]) -> Iterator[Any]:
        old = "deprecated: " * (schema.get("deprecationMessage") == text)
        yield jsonschema.ValidationError(old + text)

    def wanted(validator: Any, texts: Any, value: Any, schema: dict[str, Any]) -> Iterator[Any]:
        for key, text in texts.items():
            if not at(value, key):
                yield jsonschema.ValidationError(text, path=[key])

    ours = {"x-rule": rule, "x-wanted": wanted}
    ours |= {"deprecationMessage": warning, "x-warning": warning}
    kinds = jsonschema.validators.extend(jsonschema.Draft7Validator, ours)
    other = referencing.jsonschema.DRAFT7.create_resource(load_schema("experiment"))
    registry = referencing.Registry().with_resource("experiment.yaml", other)
    return kinds(load_schema(kind), registry=registry)


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        nulls = load_schema("experiment")["x-null"]
        kept = {k: v for k, v in value.items() if v is not None or k in nulls}
        return {str(k): _without_nulls(v) for k, v in kept.items()}
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value


def _findings(error: Any) -> Iterator[Finding]:
    """Yield the findings that an error of jsonschema stands for."""
    key, value, schema = dotted(error.absolute_path), error.instance, error.schema
    if error.validator == "additionalProperties":
        for name in [name for name in value if name not in schema["properties"]]:
            yield _unknown(f"{key}.{name}".lstrip("."), name, schema["properties"])
    elif "propertyNames" in error.absolute_schema_path:
        yield _unknown(f"{key}.{value}", value, error.validator_value)
    elif error.validator == "required":
        for name in [name for name in error.validator_value if name not in value]:
            known = schema.get("properties", {}).get(name, {})
            cure = schema.get("x-missing", "set it")
            cure = f"set one of {_list(known['enum'])}" if "enum" in known else cure
            cure = known["errorMessage"] if "const" in known else cure
            yield Finding(f"{key}.{name}".lstrip("."), f"missing; {cure}")
    elif not isinstance(value, str) or not PLACEHOLDER.search(value):  # told as a placeholder
        yield Finding(key, _problem(error), warning=error.validator in _WARNINGS)


def _unknown(key: str, name: str, known: Iterable[str]) -> Finding:
    if name in load_schema("experiment")["x-fork"]:
        said = "0.38.1 refuses it; only the fork has it (cluster/README.md)"
        return Finding(key, said, warning=True)
    return Finding(key, f"unknown key; {nearest(name, known)}")


def _problem(error: Any) -> str:
    """Say what is wrong with the value of an error, and what to do."""
    value, wanted, schema = error.instance, error.validator_value, error.schema
    told = schema.get("errorMessage", "")
    if value is None:
        return "empty; fill it in or take it out"
    got = f"{value!r:.60}"
    if error.validator == "type":
        kinds = wanted if isinstance(wanted, list) else [wanted]
        names = " or ".join(_TYPES[kind] for kind in kinds)
        least = f" of at least {schema['minimum']}" if "minimum" in schema else ""
        lines = "; begin lines with '-'" if wanted == "array" else ""
        return f"expected {names}{least}, got {got}{lines}" + (f"; {told}" if told else "")
    if error.validator == "enum":
        hint = nearest(value, map(str, wanted)) if isinstance(value, str) else ""
        near = f"; {hint}" if hint.startswith("did you") else ""
        return got + (f": {told}" if told else f" is not one of {_list(wanted)}") + near
    if error.validator in ("x-rule", *_WARNINGS):
        return str(error.message)
    limits = {
        "minimum": f"{value} is less than {wanted}; raise it",
        "exclusiveMinimum": f"{value} is not more than {wanted}; raise it",
        "maximum": f"{value} is more than {wanted}; lower it",
    }
    if told and isinstance(value, (str, int, float)) and not schema.get("writeOnly"):
        return f"{got}: {told}"
    return told or limits.get(error.validator, str(error.message))


def _list(choices: list[Any]) -> str:
    return ", ".join(str(choice) for choice in choices if choice != "")


def dotted(path: Any) -> str:
    """Return a path of keys and numbers as `a.b[0].c`."""
    words = (f"[{each}]" if isinstance(each, int) else f".{each}" for each in path)
    return "".join(words).removeprefix(".")


def placeholders(value: Any, *path: Any) -> Iterator[Finding]:
    """Yield a finding for every placeholder in a config, at `path`, that is not filled in."""
    items = enumerate(value) if isinstance(value, list) else mapping(value).items()
    for name, inner in items:
        yield from placeholders(inner, *path, name)
    for found in PLACEHOLDER.findall(value) if isinstance(value, str) else ():
        yield Finding(dotted(path), f"placeholder {found} is not filled in")


def at(config: Any, path: str) -> Any:
    """Return what a config has at `a.b.c`; None if it has nothing there. A value of a wrong type on
    the way is reported elsewhere.
    """
    return functools.reduce(lambda node, key: mapping(node).get(key), path.split("."), config)


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
