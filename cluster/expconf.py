"""Checks of an experiment config (0.38.1): its keys, and rules that span several keys."""

import re
from collections.abc import Iterator
from typing import Any

from cluster import schema
from cluster.keys import KINDS
from cluster.ranges import RANGES, check_hyperparameters
from cluster.schema import Finding
from detalbert.settings.experiment import UNREAD
from workloads import DATA_KEYS

__all__ = ["EXPERIMENT", "RANGES", "check_experiment", "is_ours"]


_UNREAD = {key: f"a trainer script does not get it; use {use}" for key, use in UNREAD.items()}
EXPERIMENT = KINDS["experiment"]
EXPERIMENT.deprecated.update(_UNREAD)


def check_experiment(file: str, config: dict[str, Any]) -> Iterator[Finding]:
    """Yield findings on keys, types and limits of an experiment config, and on its entrypoint."""
    yield from schema.check(file, "", config, EXPERIMENT)
    yield from check_hyperparameters(file, config, is_ours(config))
    if (config.get("workspace") or "") == "" != (config.get("project") or ""):
        yield Finding(file, "workspace", "missing, and project is there; set both or neither")
    elif (config.get("project") or "") == "" != (config.get("workspace") or ""):
        yield Finding(file, "project", "missing, and workspace is there; set both or neither")
    yield from _check_entrypoint(file, config)
    if not config.get("name"):
        yield Finding(file, "name", "missing; the master makes one up", warning=True)


def _check_entrypoint(file: str, config: dict[str, Any]) -> Iterator[Finding]:
    entrypoint = config.get("entrypoint")
    if isinstance(entrypoint, list) and all(isinstance(word, str) for word in entrypoint):
        if entrypoint and re.search(r"\s", entrypoint[0].strip()):
            problem = f"{entrypoint[0]!r} is run as the name of one program; one word an item"
            yield Finding(file, "entrypoint", problem)
        entrypoint = " ".join(entrypoint)
    if not isinstance(entrypoint, str):
        return
    if not entrypoint.strip():
        problem = "empty: the trial completes and trains nothing; name train.py"
        yield Finding(file, "entrypoint", problem)
    answers = runs(config, "predict.py")
    if answers:
        for flag in ("--model", "--data"):
            if flag not in entrypoint:
                yield Finding(file, "entrypoint", f"predict.py without {flag}; say which")
    slots = schema.mapping(config.get("resources")).get("slots_per_trial", 1)
    alone = (answers or runs(config, "train.py")) and "determined.launch" not in entrypoint
    if alone and isinstance(slots, int) and slots > 1:
        problem = f"{slots} slots need a launcher: python3 -m determined.launch.torch_distributed"
        yield Finding(file, "entrypoint", f"{problem} before the rest")


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
