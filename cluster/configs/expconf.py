"""Checks of an experiment config (0.38.1): its keys, and rules that span several keys.

Keys, types and limits are those of experiment.yaml; what an entrypoint runs is judged by its words,
so a launcher of another make is taken for none.
"""

from collections.abc import Iterator
from typing import Any

from cluster.configs import schema
from cluster.configs.schema import Config, Findings
from detalbert.settings.schema import Finding, at, dotted, mapping
from workloads import DATA_KEYS

RANGES = ("const", "categorical", "int", "double", "log")
LAUNCHER = "python3 -m determined.launch.torch_distributed"


def check_experiment(config: Config) -> Findings:
    """Yield findings on keys, types and limits of an experiment config, and on its entrypoint."""
    yield from schema.check(config, "experiment")
    if at(config, "searcher.name") in (None, "single"):
        # One random value, an error in a run of this package.
        problem = "a search range under searcher.name single; give one value"
        for key in _ranges(config.get("hyperparameters"), "hyperparameters"):
            yield Finding(key, problem, warning=not is_ours(config))
    yield from _check_entrypoint(config)


def _ranges(values: Any, *path: str) -> Iterator[str]:
    """Yield the dotted key of every range in `values`, which are at `path`."""
    for name, value in mapping(values).items():
        kind = mapping(value).get("type")
        if kind is None:
            yield from _ranges(value, *path, name)
        elif kind in RANGES[1:]:
            yield dotted((*path, name))


def _check_entrypoint(config: Config) -> Findings:
    text = " ".join(entrypoint_words(config))
    answers = runs(config, "predict.py")
    for flag in ("--model", "--data"):
        if answers and flag not in text:
            yield Finding("entrypoint", f"predict.py without {flag}; say which")
    slots = at(config, "resources.slots_per_trial")
    if "determined.launch" in text or not isinstance(slots, int):
        return
    if slots > 1 and (answers or runs(config, "train.py")):
        problem = f"{slots} slots need a launcher: {LAUNCHER} before the rest"
        yield Finding("entrypoint", problem)


def is_ours(config: Config) -> bool:
    """Return whether the experiment runs this package's train.py, not another file of that name."""
    data = mapping(config.get("data"))
    hparams = mapping(config.get("hyperparameters"))
    if data.keys().isdisjoint(DATA_KEYS) and hparams.keys().isdisjoint(("model", "model_config")):
        return False
    return runs(config, "train.py")


def runs(config: Config, script: str) -> bool:
    """Return whether the entrypoint runs a file named `script`."""
    return any(word.rsplit("/", 1)[-1] == script for word in entrypoint_words(config))


def entrypoint_words(config: Config) -> list[str]:
    """Return the words of the entrypoint, which a config gives as one text or as a list."""
    entrypoint = config.get("entrypoint")
    words = entrypoint if isinstance(entrypoint, list) else str(entrypoint or "").split()
    return [str(word) for word in words]
