"""Configs against their schemas, and placeholders in our files, which a user fills in."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from detalbert.settings import schema
from detalbert.settings.schema import Finding, dotted, mapping

Config = dict[str, Any]  # a mapping of YAML
Findings = Iterator[Finding]
PLACEHOLDER = re.compile(r"<<[^<>]*>>|(?<![\w.-])my-(?:bucket|pretrained-checkpoint)(?![\w.-])")
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


def placeholders(value: Any, *path: Any) -> Findings:
    """Yield a finding for every placeholder in a config, at `path`, that is not filled in."""
    if isinstance(value, str):
        for text in PLACEHOLDER.findall(value):
            yield Finding(dotted(path), f"placeholder {text} is not filled in")
        return
    items = enumerate(value) if isinstance(value, list) else mapping(value).items()
    for key, inner in items:
        yield from placeholders(inner, *path, key)
