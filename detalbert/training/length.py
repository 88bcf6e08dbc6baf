"""The checkpoint from which a run is resumed with another number of steps.

With wsd, the steps before the decay are the same in a run of any length. So such a run goes back to
its newest checkpoint from before the decay, and ends as if it had this length from the start.
"""

import logging
from pathlib import Path
from typing import cast

from detalbert.engine.optim import decay_start
from detalbert.training.checkpoints import LENGTH, list_checkpoints, read_manifest
from detalbert.training.folder import set_aside
from detalbert.training.output import Output
from detalbert.training.workload import Training

log = logging.getLogger(__name__)


def choose_checkpoint(newest: Path, training: Training, output: Output) -> Path:
    """Return `newest`, or if the length of a wsd run has changed, its newest checkpoint from before
    the decay; later ones, which a next start would resume from, are moved aside within `output`.
    """
    length, done = (read_manifest(newest)[key] for key in ("run", "steps"))
    if (before := length[LENGTH]) == training.hparams.max_steps:
        return newest
    chosen = newest
    if training.hparams.schedule == "wsd":
        earlier = [path for at, path in reversed(list_checkpoints(newest.parent)) if at < done]
        undecayed = (path for path in [newest, *earlier] if _is_undecayed(path, training, output))
        if (found := next(undecayed, None)) is None:
            log.warning("wsd: going on from decayed weights: no earlier checkpoint is kept")
        chosen = found or newest
        done = read_manifest(chosen)["steps"]
    if later := [path for at, path in list_checkpoints(output.folder / "checkpoints") if at > done]:
        said = "going on from step %d of the run of %d steps; its later checkpoints are now in %s"
        log.info(said, done, before, set_aside(output.folder, later))
    return chosen


def _is_undecayed(path: Path, training: Training, output: Output) -> bool:
    """Return whether a checkpoint is complete, and before the decay of its run and of this one."""
    if not output.fill(path):
        return False
    manifest, now = read_manifest(path), cast(int, training.hparams.max_steps)
    starts = (decay_start(training.hparams, length) for length in (manifest["run"][LENGTH], now))
    return manifest["steps"] <= min(starts)
