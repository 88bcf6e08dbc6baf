"""Checks of an experiment config (0.38.1): its keys, and rules that span several keys."""

from collections.abc import Iterator
from typing import Any

from cluster.configs import schema
from detalbert.settings.schema import Finding, at, dotted, mapping
from workloads import DATA_KEYS

RANGES = ("const", "categorical", "int", "double", "log")


def check_experiment(config: dict[str, Any]) -> Iterator[Finding]:
    """Yield findings on keys, types and limits of an experiment config, and on its entrypoint."""
    yield from schema.check(config, "experiment")
    if at(config, "searcher.name") in (None, "single"):
        # One random value, an error in a run of this package.
        said = "a search range under searcher.name single; give one value"
        for key in _ranges(config.get("hyperparameters"), "hyperparameters"):
            yield Finding(key, said, warning=not is_ours(config))
    yield from _check_entrypoint(config)


def _ranges(values: Any, *path: str) -> Iterator[str]:
    """Yield the dotted key of every range in `values`, which are at `path`."""
    for name, value in mapping(values).items():
        if "type" not in mapping(value):
            yield from _ranges(value, *path, name)
        elif value["type"] in RANGES[1:]:
            yield dotted((*path, name))


def _check_entrypoint(config: dict[str, Any]) -> Iterator[Finding]:
    entrypoint = config.get("entrypoint")
    if isinstance(entrypoint, list) and all(isinstance(word, str) for word in entrypoint):
        entrypoint = " ".join(entrypoint)
    if not isinstance(entrypoint, str):
        return
    answers = runs(config, "predict.py")
    for flag in ("--model", "--data") if answers else ():
        if flag not in entrypoint:
            yield Finding("entrypoint", f"predict.py without {flag}; say which")
    slots = mapping(config.get("resources")).get("slots_per_trial", 1)
    alone = (answers or runs(config, "train.py")) and "determined.launch" not in entrypoint
    if alone and isinstance(slots, int) and slots > 1:
        problem = f"{slots} slots need a launcher: python3 -m determined.launch.torch_distributed"
        yield Finding("entrypoint", f"{problem} before the rest")


def is_ours(config: dict[str, Any]) -> bool:
    """Return whether the experiment runs this package's train.py, not another file of that name."""
    data, hparams = (mapping(config.get(key)) for key in ("data", "hyperparameters"))
    told = set(DATA_KEYS) & set(data) or {"model", "model_config"} & set(hparams)
    return runs(config, "train.py") and bool(told)


def runs(config: dict[str, Any], script: str) -> bool:
    """Return whether the entrypoint runs a file named `script`."""
    entrypoint = config.get("entrypoint")
    words = entrypoint if isinstance(entrypoint, list) else str(entrypoint).split()
    return any(str(word).rsplit("/", 1)[-1] == script for word in words)
