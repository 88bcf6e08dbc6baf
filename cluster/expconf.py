"""Checks of an experiment config (0.38.1): its keys, and rules that span several keys."""

import re
from collections.abc import Iterator
from typing import Any

from cluster import schema
from cluster.schema import Finding
from detalbert.settings.experiment import UNREAD
from workloads import DATA_KEYS

RANGES = ("const", "categorical", "int", "double", "log")
RANDOM = "a search range under searcher.name single; give one value"


def check_experiment(config: dict[str, Any]) -> Iterator[Finding]:
    """Yield findings on keys, types and limits of an experiment config, and on its entrypoint."""
    yield from schema.check(config, "experiment")
    for key, use in UNREAD.items():
        if key in config:
            said = f"deprecated: a trainer script does not get it; use {use}"
            yield Finding(key, said, warning=True)
    yield from _check_ranges(config)
    for key, other in (("workspace", "project"), ("project", "workspace")):
        if config.get(other) and not config.get(key):
            yield Finding(key, f"missing, and {other} is there; set both or neither")
    yield from _check_entrypoint(config)
    if not config.get("name"):
        yield Finding("name", "missing; the master makes one up", warning=True)


def _check_ranges(config: dict[str, Any]) -> Iterator[Finding]:
    """Yield findings on ranges that do not suit the searcher. A range without a search is one
    random value, an error in a run of this package.
    """
    searcher = schema.mapping(config.get("searcher")).get("name")
    given = schema.mapping(config.get("hyperparameters")).items()
    grid = searcher == "grid"  # the master looks for counts in lists, too
    ranges = (found for k, v in given for found in _ranges(f"hyperparameters.{k}", v, grid))
    for key, value in ranges:
        if grid and value["type"] in ("int", "double", "log"):
            if value.get("count") is None:
                yield Finding(f"{key}.count", "missing; searcher.name grid needs it")
        elif value["type"] in RANGES[1:] and searcher in (None, "single"):
            yield Finding(key, RANDOM, warning=not is_ours(config))


def _ranges(key: str, value: Any, in_lists: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the dotted key and the mapping of every range in `value`."""
    if isinstance(value, list) and in_lists:
        for number, inner in enumerate(value):
            yield from _ranges(f"{key}[{number}]", inner, in_lists)
    elif isinstance(value, dict) and "type" in value:
        yield key, value
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from _ranges(f"{key}.{name}", inner, in_lists)


def _check_entrypoint(config: dict[str, Any]) -> Iterator[Finding]:
    entrypoint = config.get("entrypoint")
    if isinstance(entrypoint, list) and all(isinstance(word, str) for word in entrypoint):
        if entrypoint and re.search(r"\s", entrypoint[0].strip()):
            said = f"{entrypoint[0]!r} is run as the name of one program; one word an item"
            yield Finding("entrypoint", said)
        entrypoint = " ".join(entrypoint)
    if not isinstance(entrypoint, str):
        return
    if not entrypoint.strip():
        problem = "empty: the trial completes and trains nothing; name train.py"
        yield Finding("entrypoint", problem)
    answers = runs(config, "predict.py")
    if answers:
        for flag in ("--model", "--data"):
            if flag not in entrypoint:
                yield Finding("entrypoint", f"predict.py without {flag}; say which")
    slots = schema.mapping(config.get("resources")).get("slots_per_trial", 1)
    alone = (answers or runs(config, "train.py")) and "determined.launch" not in entrypoint
    if alone and isinstance(slots, int) and slots > 1:
        problem = f"{slots} slots need a launcher: python3 -m determined.launch.torch_distributed"
        yield Finding("entrypoint", f"{problem} before the rest")


def is_ours(config: dict[str, Any]) -> bool:
    """Return whether the experiment runs this package's train.py, not another file of that name."""
    data, hparams = (schema.mapping(config.get(key)) for key in ("data", "hyperparameters"))
    told = set(DATA_KEYS) & set(data) or {"model", "model_config"} & set(hparams)
    return runs(config, "train.py") and bool(told)


def runs(config: dict[str, Any], script: str) -> bool:
    """Return whether the entrypoint runs a file named `script`."""
    entrypoint = config.get("entrypoint")
    words = entrypoint if isinstance(entrypoint, list) else str(entrypoint).split()
    return any(str(word).rsplit("/", 1)[-1] == script for word in words)
