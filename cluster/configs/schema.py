"""Configs against their schemas, and placeholders in our files, which a user fills in.

A schema says what a single key may hold, so that a key that is new in a release is a line of YAML
and no code; rules over several keys are functions of the modules beside this one.
"""

import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import referencing.jsonschema
from jsonschema import ValidationError

from cluster.configs import rules
from cluster.configs.values import Finding, at, dotted, mapping
from detalbert.errors import UserError
from detalbert.settings import schema
from detalbert.settings.schema import as_a_master_reads, load_schema, problems_of
from detalbert.settings.values import Config

Findings = Iterator[Finding]
# <<anything>>, and the names that the configs which ship use for a bucket and a checkpoint.
PLACEHOLDER = re.compile(
    r"<<[^<>]*>>|(?<![\w.-])my-(?:bucket|pretrained-checkpoint|questions)(?![\w.-])"
)
SCHEMAS = {
    "experiment": schema.EXPERIMENT,
    "master": Path(__file__).with_name("master.yaml"),
}
_WARNINGS = ("deprecationMessage", "x-warning", "x-wanted")


def check(config: Config, kind: str) -> Findings:
    """Yield the findings on a config by the schema of its kind, one for each key. Values with a
    placeholder are left out: `placeholders` yields these.
    """
    seen = {finding.key for finding in placeholders(config)}
    read = as_a_master_reads if kind == "experiment" else without_nulls
    # The type of a value first: a wrong one breaks most other rules as well.
    errors = sorted(
        _validator(kind).iter_errors(read(config)), key=lambda error: error.validator != "type"
    )
    for error in errors:
        is_warning = error.validator in _WARNINGS
        for problem in problems_of(error):
            of_fork = problem.key.rpartition(".")[2] in load_schema(SCHEMAS["master"])["x-fork"]
            if of_fork:
                problem = UserError("only the fork has it (cluster/README.md)", key=problem.key)
            if problem.key not in seen:
                yield from_error(problem)._replace(warning=is_warning or of_fork)
            if not is_warning:
                seen.add(problem.key)


def from_error(error: UserError) -> Finding:
    """Return the finding that an error stands for."""
    return Finding(error.key, problem=error.problem, cure=error.cure)


@functools.cache
def _validator(kind: str) -> Any:
    """Return jsonschema's validator with the keywords of our schemas."""
    keywords = {
        "x-rule": _check_rule,
        "x-wanted": _warn_of_missing,
        "deprecationMessage": _warn,
        "x-warning": _warn,
    }
    extended = jsonschema.validators.extend(jsonschema.Draft7Validator, keywords)
    # The master's refers to definitions of the experiment's by its path relative to this folder.
    experiment = referencing.jsonschema.DRAFT7.create_resource(load_schema())
    names = schema.EXPERIMENT.name, f"../../detalbert/settings/{schema.EXPERIMENT.name}"
    registry = referencing.Registry().with_resources((name, experiment) for name in names)
    return extended(load_schema(SCHEMAS[kind]), registry=registry)


def _check_rule(
    validator: Any, rule: str, value: object, part: Config
) -> Iterator[ValidationError]:
    """Apply `x-rule`: the name of a function of rules.py, to a value of the schema's type."""
    if validator.is_type(value, part["type"]):
        problem = getattr(rules, rule)(value)
        if problem:
            yield ValidationError(problem)


def _warn(validator: Any, text: str, value: object, part: Config) -> Iterator[ValidationError]:
    """Apply `deprecationMessage` and `x-warning`."""
    is_old = part.get("deprecationMessage") == text
    yield ValidationError(f"deprecated: {text}" if is_old else text)


def _warn_of_missing(
    validator: Any, texts: dict[str, str], value: object, part: Config
) -> Iterator[ValidationError]:
    """Apply `x-wanted`: what to say of each key that is not there."""
    for key, text in texts.items():
        if not at(value, key):
            yield ValidationError(text, path=key.split("."))


def without_nulls(value: Any) -> Any:
    """Return part of a master config without the keys whose null counts as absent."""
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    if not isinstance(value, dict):
        return value
    # For a few keys null is a value of its own.
    nullable = load_schema(SCHEMAS["master"])["x-null"]
    present = {}
    for key, inner in value.items():
        if inner is not None or key in nullable:
            present[key] = without_nulls(inner)
    return present


def placeholders(value: object, *path: str | int) -> Findings:
    """Yield a finding for every placeholder in a config, at `path`, that is not filled in."""
    if isinstance(value, str):
        for text in PLACEHOLDER.findall(value):
            yield Finding(key=dotted(path), problem=f"placeholder {text} is not filled in")
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from placeholders(item, *path, number)
    else:
        for key, inner in mapping(value).items():
            yield from placeholders(inner, *path, key)
