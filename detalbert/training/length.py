"""The checkpoint from which a run is resumed with another number of steps.

With wsd, the steps before the decay are the same in a run of any length. So such a run goes back to
its newest checkpoint from before the decay, and ends as if it had this length from the start.
"""

import logging
from pathlib import Path
from typing import cast

from detalbert.engine.optim import decay_start
from detalbert.training.manifest import find_fault, read_manifest
from detalbert.training.timeline import LENGTH, own_checkpoints
from detalbert.training.workload import Training

log = logging.getLogger(__name__)


def choose_checkpoint(newest: Path, training: Training) -> Path:
    """Return `newest`, or if the length of a wsd run has changed, its newest checkpoint from before
    the decay.
    """
    manifest = read_manifest(newest)
    same_length = manifest["run"][LENGTH] == training.hparams.max_steps
    if same_length or training.hparams.schedule != "wsd":
        return newest
    own = own_checkpoints(
        newest.parent,
        steps=manifest["steps"] - 1,
        run=training.identity(),
        validations=manifest["validations"],
    )
    # `newest` may be damaged, or of a time line that the run has left; it counts all the same.
    for path in [newest, *reversed(own.values())]:
        if _is_undecayed(path, training):
            return path
    log.warning("wsd: going on from decayed weights: no earlier checkpoint is kept")
    return newest


def _is_undecayed(path: Path, training: Training) -> bool:
    """Return whether a checkpoint is complete, and before the decay of its run and of this one."""
    if find_fault(path) is not None:
        return False
    manifest = read_manifest(path)
    # The decay of the run that wrote it, and of this one, which has another length.
    length_before = manifest["run"][LENGTH]
    length_now = cast(int, training.hparams.max_steps)  # `Training.load` has set it
    decay_before = decay_start(training.hparams, total=length_before)
    decay_now = decay_start(training.hparams, total=length_now)
    return manifest["steps"] <= min(decay_before, decay_now)
