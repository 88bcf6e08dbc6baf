"""Time line of a run: which checkpoints of a folder are its own.

A folder may also have damaged checkpoints, those of another run, and, once a run has been resumed
from an older one, later ones that it has left behind. Counted, they would take the place of the
run's own when old ones are pruned; the greatest step would be resumed from. So a start moves them
into `previous-N/`: that costs their room until a user removes them, and loses nothing.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from detalbert.sums import json_sum
from detalbert.training.manifest import find_damage, read_manifest

# Values by config key, or a manifest.
Settings = Mapping[str, Any]
# Validations, oldest first.
History = Sequence[Mapping[str, float]]

# The length of a run; it may change, but not to less than is done.
LENGTH = "hyperparameters.max_steps"


def list_checkpoints(folder: Path) -> list[tuple[int, Path]]:
    """Return (steps, path) of all finished checkpoints in `folder`, oldest first."""
    checkpoints = []
    for path in folder.glob("step-*"):
        name = re.fullmatch("step-([0-9]+)", path.name)
        if name:
            checkpoints.append((int(name[1]), path))
    return sorted(checkpoints)


def own_checkpoints(
    folder: Path, steps: int, run: Settings, validations: History
) -> dict[int, Path]:
    """Return the complete checkpoints of a run, by step, oldest first.

    Args:
        folder: where they are, perhaps beside those of other runs, or of an abandoned time line.
        steps: steps that the run has done; later checkpoints are not its own.
        run: its settings, as in manifests. The length may have changed.
        validations: its history; that of an own checkpoint is the beginning of it.
    """
    own = {}
    for step, path in list_checkpoints(folder):
        if step > steps or find_damage(path) is not None:
            continue
        # Two runs of equal settings are told apart by their scores, if both have any.
        manifest = read_manifest(path)
        if _has_settings(manifest, run) and _has_history(manifest, validations):
            own[step] = path
    return own


def _has_settings(manifest: Settings, run: Settings) -> bool:
    """Return whether a checkpoint's run had the settings of `run`, as far as both have them."""
    for key, value in manifest["run"].items():
        may_differ = key == LENGTH or key not in run
        if not may_differ and value != run[key]:
            return False
    return True


def _has_history(manifest: Settings, validations: History) -> bool:
    """Return whether a checkpoint has those of `validations` that came before it."""
    history = manifest["validations"]
    shared = validations[: len(history)]
    if json_sum(history) != json_sum(shared):
        return False
    # The last validation of a run may come after its last checkpoint, at the same step.
    for validation in validations[len(history) :]:
        if validation["steps"] < manifest["steps"]:
            return False
    return True
