"""Hyperparameters: single values, search ranges, and mappings of more of them."""

from collections.abc import Iterator
from typing import Any

from cluster import schema
from cluster.keys import KINDS
from cluster.schema import Finding, check
from detalbert.errors import nearest

# A search range, by `type`; every other mapping is a nested value.
RANGES = {name: KINDS[f"{name} range"] for name in ("const", "categorical", "int", "double", "log")}
RANDOM = "a search range under searcher.name single; give one value"


def check_hyperparameters(file: str, config: dict[str, Any], ours: bool) -> Iterator[Finding]:
    """Yield findings on all ranges in `hyperparameters:`, nested ones too, for the searcher's type.
    A range without a search is one random value, an error in a run of this package (`ours`).
    """
    searcher = schema.mapping(config.get("searcher")).get("name")
    for name, value in schema.mapping(config.get("hyperparameters")).items():
        for finding in _check_one(file, f"hyperparameters.{name}", value, searcher):
            random = finding.problem == RANDOM
            yield finding._replace(warning=True) if random and not ours else finding


def _check_one(file: str, key: str, value: Any, searcher: Any) -> Iterator[Finding]:
    if isinstance(value, list) and searcher == "grid":  # in a list, the master looks for counts
        for number, inner in enumerate(value):
            yield from _check_count(file, f"{key}[{number}]", inner)
    if not isinstance(value, dict):
        return
    if "type" not in value:
        for name, inner in value.items():
            yield from _check_one(file, f"{key}.{name}", inner, searcher)
        return
    kind = value["type"]
    if not isinstance(kind, str) or kind not in RANGES:
        yield Finding(file, f"{key}.type", f"{kind!r}; {nearest(str(kind), list(RANGES))}")
        return
    nulls = {} if kind != "const" or "val" not in value else {"val": value["val"] or 0}
    yield from check(file, key, {**value, **nulls}, RANGES[kind])
    if searcher == "grid":
        yield from _check_count(file, key, value)
    elif kind != "const" and searcher in (None, "single"):
        yield Finding(file, key, RANDOM)


def _check_count(file: str, key: str, value: Any) -> Iterator[Finding]:
    """Yield findings on ranges without `count`, which a grid search needs for unlisted values."""
    if isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _check_count(file, f"{key}[{number}]", inner)
    elif isinstance(value, dict) and "type" not in value:
        for name, inner in value.items():
            yield from _check_count(file, f"{key}.{name}", inner)
    elif isinstance(value, dict) and value["type"] in ("int", "double", "log"):
        if value.get("count") is not None:
            return
        yield Finding(file, f"{key}.count", "missing; searcher.name grid needs it")
