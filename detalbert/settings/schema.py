"""The sections of a config that Determined defines, against a JSON Schema, experiment.yaml.

It is the one list of the keys that Determined reads, with their types and limits: train.py and
cluster.check refuse by it. The errors have jsonschema's wording and name the key.
"""

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
from jsonschema import ValidationError

from detalbert.errors import UnknownKey, UserError
from detalbert.redact import masked
from detalbert.settings.sections import as_whole
from detalbert.settings.values import Config
from detalbert.settings.yaml_files import read_yaml

EXPERIMENT = Path(__file__).with_name("experiment.yaml")
OWN_SECTIONS = "hyperparameters", "data"  # whose keys are this package's


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
        present = {key: inner for key, inner in value.items() if inner is not None}
        return {key: _plain(inner) for key, inner in present.items()}
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
                yield UnknownKey(str(name), section=place, known=properties)
    elif "propertyNames" in error.absolute_schema_path:
        yield UnknownKey(str(value), section=place, known=error.validator_value)
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
