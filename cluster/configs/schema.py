"""Configs against their schemas, and placeholders in our files, which a user fills in.

A schema says what a single key may hold, so that a key that is new in a release is a line of YAML
and no code; rules over several keys are functions of the modules beside this one.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from detalbert.settings import schema
from detalbert.settings.schema import Finding, dotted, mapping
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


def check(config: Config, kind: str) -> Findings:
    """Yield the findings on a config by the schema of its kind. Values with a placeholder are left
    out: `placeholders` yields these.
    """
    unfilled = {finding.key for finding in placeholders(config)}
    for finding in schema.check(config, SCHEMAS[kind]):
        if finding.key not in unfilled:
            yield finding


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
