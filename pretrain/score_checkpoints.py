"""Checkpoints that a pretraining saved, locally or on a cluster, with their scores."""

import contextlib
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import workloads
from detalbert.errors import UserError
from detalbert.inference.find import fetch, told
from detalbert.training.checkpoints import find_fault, list_checkpoints, read_manifest
from pretrain.hparams import PARSERS

ACCURACIES = ("mlm_accuracy", "sop_accuracy")
_OWNER = re.compile(r"(trial|experiment):(\d+)")


class Kept(NamedTuple):
    """A checkpoint: steps, folder or UUID on a cluster, and validation accuracies in percent.

    `accuracies` has the `ACCURACIES` of the validation after these steps; it is empty without one.
    """

    steps: int
    name: str
    accuracies: dict[str, float]
    remote: bool

    def folder(self) -> Path:
        """Return the folder, downloaded once from a cluster. Raises UserError if that fails."""
        return fetch(self.name) if self.remote else Path(self.name)


class Pretraining(NamedTuple):
    """Settings that identify a pretraining, by config key, and its checkpoints, in step order."""

    identity: dict[str, Any]
    kept: list[Kept]


def find_pretraining(run: str) -> Pretraining:
    """Return the checkpoints of `run`: an output directory, experiment:ID or trial:ID. Raises
    UserError if it is not a pretraining, has no checkpoint, or a damaged one.
    """
    if (owner := _OWNER.fullmatch(run)) and not Path(run).exists():
        with told(run):
            return _of_cluster(run, owner[1], int(owner[2]))
    found = list_checkpoints(Path(run) / "checkpoints")
    if not found:
        raise UserError(
            f"{run}: no checkpoint there; give a pretraining's output directory or experiment:ID"
        )
    for _, path in found:
        if fault := find_fault(path):
            raise UserError(f"{path}: damaged ({fault}); restore it or remove it")
    newest = read_manifest(found[-1][1])
    if "hyperparameters.masked_fraction" not in newest["run"]:
        raise _no_pretraining(run)
    validations = newest["validations"]  # all until then
    with contextlib.suppress(OSError, ValueError, KeyError):  # the one at the end comes later
        validations.append(json.loads((Path(run) / "metrics.json").read_text())["last"])
    validations = {scores["steps"]: scores for scores in validations}
    kept = [Kept(n, str(path), _accuracies(validations.get(n)), False) for n, path in found]
    return Pretraining(newest["run"], kept)


def _of_cluster(run: str, kind: str, number: int) -> Pretraining:
    from determined.experimental import client

    owner = getattr(client.Determined(), f"get_{kind}")(number)
    oldest_first = {"sort_by": client.CheckpointSortBy.END_TIME, "order_by": client.OrderBy.ASC}
    found = [
        checkpoint
        for checkpoint in owner.list_checkpoints(**oldest_first)
        if checkpoint.state is client.CheckpointState.COMPLETED and checkpoint.training
    ]
    trials = sorted({checkpoint.training.trial_id for checkpoint in found})
    if not trials:
        raise UserError(f"{run}: it has no finished checkpoint; wait for one")
    if len(trials) > 1:
        raise UserError(f"{run}: {len(trials)} trials; give one, such as trial:{trials[0]}")
    training = found[-1].training
    if workloads.parsers(training.experiment_config) is not PARSERS:
        raise _no_pretraining(run)
    kept = {}  # of two after the same steps, the newer one
    for checkpoint in found:
        steps = int(checkpoint.metadata["steps_completed"])
        scores = checkpoint.training.validation_metrics.get("avgMetrics")
        kept[steps] = Kept(steps, checkpoint.uuid, _accuracies(scores), True)
    hparams = {f"hyperparameters.{key}": value for key, value in training.hparams.items()}
    return Pretraining({"trial": trials[0], **hparams}, [kept[steps] for steps in sorted(kept)])


def _accuracies(scores: dict[str, float] | None) -> dict[str, float]:
    return {name: scores[name] for name in ACCURACIES if scores and name in scores}


def _no_pretraining(run: str) -> UserError:
    return UserError(f"{run}: not a pretraining of ALBERT; give one")
