"""Resolution of `--model`: a checkpoint, a run's best, an exported model, one of a cluster or hub.

Every name ends as a folder on this machine, so that whatever loads a model knows only folders.
"""

import json
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download

from detalbert import hub
from detalbert.engine.ranking import best_first
from detalbert.errors import UserError, first_line
from detalbert.hub import STATE_DICT
from detalbert.inference.flags import PLACES
from detalbert.inference.references import (
    JsonObject,
    ScoredCheckpoint,
    fetch,
    find_all_of_cluster,
    is_reference,
    is_run_reference,
)
from detalbert.settings.yaml_files import read_yaml
from detalbert.training.manifest import find_damage, find_fault, read_manifest
from detalbert.training.metrics_file import METRICS_FILE, read_metrics
from detalbert.training.table import TABLE
from detalbert.training.timeline import list_checkpoints

log = logging.getLogger(__name__)
_HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w.-]+(@[\w./-]+)?")


def read_json(path: Path) -> JsonObject:
    """Return the mapping in a JSON file; {} if there is no file.

    Raises:
        UserError: the file holds anything else.
    """
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        problem = f"cannot be read ({first_line(error)})"
        raise UserError(problem, key=str(path), cure="restore it") from None
    if not isinstance(content, dict):
        raise UserError("expected a mapping of keys", key=str(path), cure="restore it")
    return content


def find(name: str) -> Path:
    """Return the folder of a model, downloaded once if it is not on this machine.

    Args:
        name: a checkpoint, a run's output directory (its best checkpoint), any model folder of
            transformers, a reference on a cluster (references.py) or a model of the hub.

    Raises:
        UserError: there is no such model, or it cannot be read.
        Unavailable: the master, the hub or the network does not answer.
    """
    key = f"--model {name}"
    folder = Path(name)

    # A folder of this machine comes first, even if it is called trial:7.
    if not folder.exists() and is_reference(name):
        return fetch(name)
    # A/B is of the hub, unless a folder A is here: then B is a mistake.
    if _HUB_NAME.fullmatch(name) and not Path(folder.parts[0]).exists():
        problem = "no such folder, and the hub does not give it"
        with hub.hub_errors(problem, key=key, cure=f"give {PLACES}"):
            return Path(hub.load_named(snapshot_download, name, allow_patterns=hub.MODEL_FILES))
    if not folder.is_dir():
        raise UserError("no such folder", key=key, cure=f"give {PLACES}")
    # Files of a checkpoint, of a sharded one, and of a model folder of transformers.
    if any((folder / mark).is_file() for mark in (STATE_DICT, TABLE, "config.json")):
        return folder
    if (folder / "checkpoints").is_dir():
        return _best_of_run(folder)
    raise UserError(
        f"neither a checkpoint ({STATE_DICT} or {TABLE}) nor a run's output directory "
        "(checkpoints/) nor a model folder (config.json)",
        key=key,
    )


def find_all(name: str) -> tuple[JsonObject, dict[int, ScoredCheckpoint]]:
    """Find the finished checkpoints of a run: of an output directory, experiment:ID or trial:ID.

    Returns:
        The run's settings by config key; and the checkpoints by step, with scores {} if there was
        no validation after it.

    Raises:
        UserError: there is no checkpoint, a damaged one, or several trials have some.
    """
    if is_run_reference(name) and not Path(name).exists():
        return find_all_of_cluster(name)
    checkpoints = list_checkpoints(Path(name) / "checkpoints")
    if not checkpoints:
        cure = "give an output directory or experiment:ID"
        raise UserError("no checkpoint there", key=name, cure=cure)
    for _, folder in checkpoints:
        fault = find_fault(folder)
        if fault is not None:
            problem = f"damaged ({fault})"
            raise UserError(problem, key=str(folder), cure="restore it or remove it")
    # The newest manifest has the run's validations so far; metrics.json may have one more.
    _, newest = checkpoints[-1]
    manifest = read_manifest(newest)
    metrics = read_metrics(Path(name)) or {}
    last = metrics.get("last") or {}
    scores = {}
    for validation in [*manifest["validations"], last]:
        scores[validation.get("steps")] = validation
    by_step = {step: (str(folder), scores.get(step, {})) for step, folder in checkpoints}
    return manifest["run"], by_step


def _best_of_run(folder: Path) -> Path:
    """Return the checkpoint of a run's best validation, or the best of those that are there."""
    key = f"--model {folder}"
    checkpoints = dict(list_checkpoints(folder / "checkpoints"))
    names = ", ".join(path.name for path in checkpoints.values()) or "(none yet)"
    cure = f"give one of {folder / 'checkpoints'}: {names}"
    metrics = read_metrics(folder)
    if metrics is None and (folder / METRICS_FILE).exists():
        raise UserError("cannot be read", key=str(folder / METRICS_FILE), cure=cure)
    # The best validation's own checkpoint, if it was kept.
    metrics = metrics or {}
    best = (metrics.get("best") or {}).get("steps")
    if best is None:
        raise UserError("no validation yet, so no best", key=key, cure=cure)
    if best in checkpoints:
        return checkpoints[best]
    # A run that was cut may have lost it: the next best will do, and the user is told.
    saved = _best_saved(folder, checkpoints, metrics.get("last") or {})
    if saved is None:
        raise UserError(f"its best, step {best}, is gone", key=key, cure=cure)
    log.warning(
        "--model %s: its best validation, at step %s, has no checkpoint; using %s, the best saved",
        folder,
        best,
        saved.name,
    )
    return saved


def _best_saved(
    folder: Path, checkpoints: Mapping[int, Path], last: Mapping[str, Any]
) -> Path | None:
    """Return the checkpoint with the best validation of its own.

    Args:
        last: the run's last validation, which may come after the checkpoint of its step.

    Returns:
        None if there is none, or if the run's config does not say which is better.
    """
    # A checkpoint's own validation is that after the same step.
    validations: list[Mapping[str, Any]] = []
    for step, path in checkpoints.items():
        if find_damage(path) is None:
            history = [*read_manifest(path)["validations"], last]
            validations += [entry for entry in history if entry.get("steps") == step]

    # The run's config, which may be missing or damaged, says which metric decides.
    try:
        ranked = best_first(validations, read_yaml(folder / "config.yaml")["searcher"])
    except (UserError, LookupError, TypeError):
        return None
    return checkpoints[int(ranked[0]["steps"])] if ranked else None
