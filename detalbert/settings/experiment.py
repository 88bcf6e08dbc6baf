"""A Determined experiment config: loaded, changed by `--set`, its sections checked.

On a cluster the master has done all this. A local run reads the same file by the same rules, so
that it never takes what a master would refuse, nor reads a value in another way. The price is a
JSON Schema of our own, experiment.yaml, the one list of the keys that Determined reads, with their
types and limits: train.py and cluster.check refuse by it. Errors have jsonschema's wording and name
the key.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jsonschema
from jsonschema import ValidationError

from detalbert.errors import SectionError, UserError, unknown_key
from detalbert.redact import masked
from detalbert.settings.sections import Parsers, as_whole, collected
from detalbert.settings.values import Config
from detalbert.settings.yaml_files import parse_yaml, read_yaml

EXPERIMENT = Path(__file__).with_name("experiment.yaml")
OWN_SECTIONS = "hyperparameters", "data"  # whose keys are this package's
# What a hyperparameter's `type` says that it is if it is not one value: a range of a search.
_RANGES = ("categorical", "int", "double", "log")


def load(path: Path, overrides: Sequence[str] = ()) -> Config:
    """Load the mapping in a YAML file, apply `--set` texts, and return it as a master reads it.
    Raises UserError as `read_yaml` and `apply_overrides` do.
    """
    config = read_yaml(path)
    apply_overrides(config, overrides)
    return as_a_master_reads(config)


def apply_overrides(config: Config, overrides: Sequence[str]) -> None:
    """Change `config` in place by `key.path=value` texts; values are parsed as YAML. Raises
    UserError for an invalid text.
    """
    for override in overrides:
        path, equals, text = override.partition("=")
        flag = f"--set {override[:100]}"
        if not equals or not path:
            raise UserError("expected key.path=value", key=flag)

        # Go down to the section of the last key; a section that is missing is made.
        *parents, last_key = path.split(".")
        section = config
        for parent in parents:
            section = section.setdefault(parent, {})
            if not isinstance(section, dict):
                raise UserError(f"{parent!r} is a value, not a section", key=flag)
        section[last_key] = parse_yaml(text, flag)


def check(config: Config, find_parsers: Callable[[Config], Parsers]) -> Config:
    """Check all sections of a config for a local run; return its hyperparameters.

    Args:
        config: as `load` returns it.
        find_parsers: of the workload that the config selects.

    Raises:
        SectionError: with all problems of the config, one for each key.
    """
    problems = find_problems(config)
    hyperparameters = config["hyperparameters"]
    if isinstance(hyperparameters, dict):
        hyperparameters = single_values(hyperparameters, problems)
    with collected(problems):
        find_parsers(config).both(config["data"], hyperparameters)
    by_key: dict[str, UserError] = {}
    for problem in problems:
        by_key.setdefault(problem.key, problem)
    if by_key:
        raise SectionError(list(by_key.values()))
    return hyperparameters


def single_values(
    hyperparameters: Config, problems: list[UserError], section: str = "hyperparameters"
) -> Config:
    """Return hyperparameters for a run outside a search: `{type: const, val: x}` unwrapped, at any
    depth.

    Args:
        hyperparameters: of the config.
        problems: receives one for each search range, whose key is left out.
        section: the dotted key of `hyperparameters`.
    """
    values = {}
    for key, value in hyperparameters.items():
        name = f"{section}.{key}"
        kind = value.get("type") if isinstance(value, dict) else None
        if kind == "const":
            values[key] = value.get("val")
        elif kind in _RANGES:
            problem = "a search range, and this is no search"
            problems.append(UserError(problem, key=name, cure="give one value, by --set"))
        elif isinstance(value, dict):
            values[key] = single_values(value, problems, section=name)
        else:
            values[key] = value
    return values


@functools.cache
def load_schema(path: Path = EXPERIMENT) -> Config:
    """Return the schema in a file."""
    return read_yaml(path)


def as_a_master_reads(config: Config) -> Config:
    """Return a config with a master's defaults, without the keys whose value is null, and with 8
    for 8.0. In our own sections null is a value: it takes out what a default would set.
    """
    values: Config = {section: {} for section in OWN_SECTIONS}
    for key, value in config.items():
        if value is not None:
            values[key] = value if key in OWN_SECTIONS else _plain(value)
    if isinstance(values.get("searcher"), dict):
        values["searcher"].setdefault("smaller_is_better", True)
    return values


def _plain(value: Any) -> Any:
    """Return part of a config without nulls, with whole numbers for floats that are whole."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return as_whole(value)


def find_problems(config: Config) -> list[UserError]:
    """Return the problems of a config that `as_a_master_reads` returned."""
    validator = jsonschema.Draft7Validator(load_schema())
    problems: list[UserError] = []
    for error in validator.iter_errors(config):
        problems += problems_of(error)
    return problems


def problems_of(error: ValidationError) -> Iterator[UserError]:
    """Yield the problems that an error of jsonschema stands for."""
    place = error.json_path.removeprefix("$").removeprefix(".")
    value = error.instance
    # One error may be of several keys, and has the path of the section that has or lacks them.
    if error.validator == "additionalProperties":
        properties = error.schema["properties"]
        for name in value:
            if name not in properties:
                yield unknown_key(str(name), section=place, known=properties)
    elif "propertyNames" in error.absolute_schema_path:
        yield unknown_key(str(value), section=place, known=error.validator_value)
    elif error.validator == "required":
        cure = error.schema.get("x-missing", "")
        for name in error.validator_value:
            if name not in value:
                yield UserError("missing", key=f"{place}.{name}".lstrip("."), cure=cure)
    else:
        cure = "" if error.validator == "type" else error.schema.get("errorMessage", "")
        yield UserError(_message(error), key=place, cure=cure)


def _message(error: ValidationError) -> str:
    """Return what jsonschema says of a value: of it 60 characters at most, and no secret."""
    names = [step for step in error.absolute_path if isinstance(step, str)]
    key = names[-1] if names else ""
    shown = masked({key: error.instance})[key]
    message = error.message.replace(repr(error.instance), f"{shown!r:.60}")
    return message[:200]
