"""A config against a JSON Schema: the findings on its keys, in words of our own.

The schema of an experiment, experiment.yaml, is the one list of the keys that Determined reads,
with their types and limits: train.py and cluster.check refuse by it, in the same words. The keys of
`hyperparameters:` and `data:` are this package's own, fields of dataclasses (hparams.py, text.py).

jsonschema finds the errors, and says them in the terms of schemas. So each is said anew here, which
is most of this file.
"""

import functools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from detalbert.errors import nearest
from detalbert.redact import masked
from detalbert.settings.hparams import DataConfig, HParams
from detalbert.settings.text import DocumentsConfig, TextConfig
from detalbert.settings.values import Config
from detalbert.settings.yaml_files import read_yaml

if TYPE_CHECKING:  # not in a task's image before the hook has run
    from jsonschema import ValidationError
    from jsonschema.protocols import Validator

EXPERIMENT = Path(__file__).with_name("experiment.yaml")
LARGEST = 2**63  # of whole numbers, as in Go
_TYPES = {
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "object": "a mapping of keys",
    "array": "a list",
}
_OWN_FIELDS = [
    ("hyperparameters", HParams.__dataclass_fields__),
    ("data", DataConfig.__dataclass_fields__),
    ("data", TextConfig.__dataclass_fields__),
    ("data", DocumentsConfig.__dataclass_fields__),
]
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
    cure: str = ""  # what to do, unless the problem says it

    def __str__(self) -> str:
        return f"{self.file}: {self.key}: {'warning: ' * self.warning}{self.detail}"

    @property
    def detail(self) -> str:
        """The line without file and key, as that of a UserError."""
        return f"{self.problem}; {self.cure}" if self.cure else self.problem


def check(config: Config, schema: Path = EXPERIMENT, local: bool = False) -> Iterator[Finding]:
    """Yield the findings on a config, where it does not match the schema in a file.

    Args:
        config: as it was read; keys with the value null are absent.
        schema: a JSON Schema in YAML.
        local: leave out missing keys that only a master needs, `x-master` and `x-wanted`.
    """
    validator = _validator(schema)
    errors = list(validator.iter_errors(without_nulls(config)))
    mistyped = {tuple(error.absolute_path) for error in errors if error.validator == "type"}
    # Two branches of a schema may say the same.
    findings: dict[Finding, None] = {}
    for error in errors:
        if local and error.validator == "x-wanted":
            continue
        # A value of a wrong type breaks most other rules as well: its type is all there is to say.
        path = tuple(error.absolute_path)
        speaks_of_type = error.validator in ("type", *_WARNINGS)
        if speaks_of_type or path not in mistyped:
            findings.update(dict.fromkeys(_findings(error, local)))
    yield from findings


@functools.cache
def load_schema(path: Path) -> Config:
    """Return the schema in a file."""
    return read_yaml(path)


@functools.cache
def _validator(path: Path) -> "Validator":
    """Return jsonschema's validator with the keywords of our schemas."""
    import jsonschema  # not in a task's image before the hook has run
    import referencing.jsonschema

    keywords = {
        "x-rule": _check_rule,
        "x-wanted": _warn_of_missing,
        "deprecationMessage": _warn,
        "x-warning": _warn,
    }
    types = jsonschema.Draft7Validator.TYPE_CHECKER.redefine("integer", _is_integer)
    extended = jsonschema.validators.extend(
        jsonschema.Draft7Validator, keywords, type_checker=types
    )
    # Other schemas refer to definitions of the experiment's by its path relative to their folder.
    experiment = referencing.jsonschema.DRAFT7.create_resource(load_schema(EXPERIMENT))
    names = EXPERIMENT.name, f"../../detalbert/settings/{EXPERIMENT.name}"
    registry = referencing.Registry().with_resources((name, experiment) for name in names)
    return extended(load_schema(path), registry=registry)


def _is_integer(_: object, value: object) -> bool:
    """Return whether a value is a whole number that Go's int64 holds; 8.0 is one, as in JSON."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return abs(value) < LARGEST and value == int(value)


def _check_rule(
    validator: "Validator", rule: str | list[str], value: object, schema: Config
) -> Iterator["ValidationError"]:
    """Apply `x-rule`: the name of a function of rules.py, or a list of it and its arguments."""
    from jsonschema import ValidationError

    from detalbert.settings import rules

    # A value of a wrong type is an error of its own.
    value_type = schema.get("type", "object")
    if not validator.is_type(value, value_type):
        return
    words = [rule] if isinstance(rule, str) else rule
    name, *arguments = words
    check_value = getattr(rules, name)
    problem = check_value(value, *arguments)
    if problem:
        yield ValidationError(problem)


def _warn(
    validator: "Validator", text: str, value: object, schema: Config
) -> Iterator["ValidationError"]:
    """Apply `deprecationMessage` and `x-warning`."""
    from jsonschema import ValidationError

    is_old = schema.get("deprecationMessage") == text
    yield ValidationError(f"deprecated: {text}" if is_old else text)


def _warn_of_missing(
    validator: "Validator", texts: dict[str, str], value: object, _: object
) -> Iterator["ValidationError"]:
    """Apply `x-wanted`: what to say of each key that is not there."""
    from jsonschema import ValidationError

    for key, text in texts.items():
        if not at(value, key):
            yield ValidationError(text, path=[key])


def without_nulls(value: object) -> Any:
    """Return part of a config without the keys whose null counts as absent."""
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    if not isinstance(value, dict):
        return value
    # For a few keys null is a value of its own.
    nullable = load_schema(EXPERIMENT)["x-null"]
    present = {}
    for key, inner in value.items():
        if inner is not None or key in nullable:
            present[str(key)] = without_nulls(inner)
    return present


def _findings(error: "ValidationError", local: bool) -> Iterator[Finding]:
    """Yield the findings that an error of jsonschema stands for; `local`: see `check`."""
    key = dotted(error.absolute_path)
    value = error.instance
    schema = error.schema
    # One error of jsonschema may be of several keys.
    if error.validator == "additionalProperties":
        properties = schema["properties"]
        for name in value:
            if name not in properties:
                yield _unknown(_below(key, name), name=name, names=properties)
    elif "propertyNames" in error.absolute_schema_path:
        yield _unknown(f"{key}.{value}", name=value, names=error.validator_value)
    elif error.validator == "required":
        optional = schema.get("x-master", ()) if local else ()
        for name in error.validator_value:
            if name not in value and name not in optional:
                cure = _cure_of_missing(schema, name)
                yield Finding(_below(key, name), problem="missing", cure=cure)
    else:
        yield Finding(key, problem=_problem(error), warning=error.validator in _WARNINGS)


def _below(key: str, name: str) -> str:
    """Return the key `name` of the section `key`; "" is the config itself."""
    return f"{key}.{name}".lstrip(".")


def _cure_of_missing(schema: Config, name: str) -> str:
    """Return what to do about a required key that is not there."""
    wanted = schema.get("properties", {}).get(name, {})
    if "const" in wanted:
        return wanted["errorMessage"]
    if "enum" in wanted:
        return f"set one of {_list(wanted['enum'])}"
    return schema.get("x-missing", "set it")


def _unknown(key: str, name: str, names: Iterable[str]) -> Finding:
    """Return the finding on a key that is not one of `names`."""
    if name in load_schema(EXPERIMENT)["x-fork"]:
        problem = "0.38.1 refuses it; only the fork has it (cluster/README.md)"
        return Finding(key, problem=problem, warning=True)
    cure = nearest(name, names)
    # Of the config itself: who writes `max_steps` means a key of a section of ours.
    for section, fields in _OWN_FIELDS:
        if key == name in fields:
            cure = f"did you mean '{section}.{name}'?"
    return Finding(key, problem="unknown key", cure=cure)


def _problem(error: "ValidationError") -> str:
    """Say what is wrong with the value of an error, and what to do."""
    value = error.instance
    message = error.schema.get("errorMessage", "")
    if value is None:
        return "empty; fill it in or take it out"
    shown = f"{_masked_value(error)!r:.60}"
    if error.validator == "type":
        return _wrong_type(error, shown=shown)
    if error.validator == "enum":
        return _wrong_choice(error, shown=shown)
    # Ours: the text is the schema's or the rule's.
    if error.validator in ("x-rule", *_WARNINGS):
        return str(error.message)
    if message:
        is_scalar = isinstance(value, (str, int, float))
        is_secret = error.schema.get("writeOnly")
        return f"{shown}: {message}" if is_scalar and not is_secret else message
    limits = {
        "minimum": f"{value} is less than {error.validator_value}; raise it",
        "exclusiveMinimum": f"{value} is not more than {error.validator_value}; raise it",
        "maximum": f"{value} is more than {error.validator_value}; lower it",
    }
    return limits.get(error.validator, str(error.message))


def _wrong_type(error: "ValidationError", shown: str) -> str:
    """Say which types a value may have; `shown` is the value without its secrets."""
    wanted = error.validator_value
    types = wanted if isinstance(wanted, list) else [wanted]
    names = " or ".join(_TYPES[name] for name in types)
    problem = f"expected {names}"
    if "minimum" in error.schema:
        problem += f" of at least {error.schema['minimum']}"
    problem += f", got {shown}"
    if wanted == "array":
        problem += "; begin lines with '-'"
    message = error.schema.get("errorMessage")
    return f"{problem}; {message}" if message else problem


def _wrong_choice(error: "ValidationError", shown: str) -> str:
    """Say which choices there are; `shown` is the value without its secrets."""
    choices = error.validator_value
    message = error.schema.get("errorMessage")
    if message:
        problem = f"{shown}: {message}"
    else:
        problem = f"{shown} is not one of {_list(choices)}"

    # A list of all choices would say nothing new: only a near one is named.
    if isinstance(error.instance, str):
        hint = nearest(error.instance, map(str, choices))
        if hint.startswith("did you"):
            problem = f"{problem}; {hint}"
    return problem


def _masked_value(error: "ValidationError") -> Any:
    """Return the value of an error without its secrets, by the keys above it, too."""
    keys = [str(key) for key in error.absolute_path if not isinstance(key, int)]
    if not keys:
        return masked(error.instance)
    last_key = keys[-1]
    section = masked({last_key: error.instance})
    return section[last_key]


def _list(choices: list[object]) -> str:
    return ", ".join(str(choice) for choice in choices if choice != "")


def dotted(path: Iterable[str | int]) -> str:
    """Return a path of keys and numbers as `a.b[0].c`."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}"
    return text.removeprefix(".")


def at(config: object, path: str) -> Any:
    """Return what a config has at `a.b.c`; None if it has nothing there. A value of a wrong type on
    the way is reported elsewhere.
    """
    value = config
    for key in path.split("."):
        value = mapping(value).get(key)
    return value


def mapping(value: object) -> Config:
    """Return `value` if it is a mapping, else an empty one: its type is reported elsewhere."""
    return value if isinstance(value, dict) else {}


def mappings(value: object) -> list[Config]:
    """Return the mappings in `value` if it is a list, else an empty list."""
    if not isinstance(value, list):
        return []
    return [item for item in value if isinstance(item, dict)]


def whole(value: object) -> int | None:
    """Return `value` if it is a whole number (8.0 too, as in the master), else None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return int(value) if value == value // 1 else None
