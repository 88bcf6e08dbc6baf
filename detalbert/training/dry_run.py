"""`train.py --dry-run`: data, model, batch and output of a run that is not started.

The experiment is loaded as a start loads it, so the same mistakes end it, and its trial is built,
which logs what is resolved. It takes the time of a start; windows that it makes stay in the cache,
for the start.
"""

import logging
import tempfile
from pathlib import Path

from determined import core

from detalbert.training import folder
from detalbert.training.controller import loop_of
from detalbert.training.local import trial_context
from detalbert.training.manifest import read_manifest
from detalbert.training.metrics import RunMetrics
from detalbert.training.schedule import LocalStops
from detalbert.training.workload import Training

log = logging.getLogger(__name__)


def dry_run(
    training: Training,
    distributed: core.DistributedContext,
    output: Path,
    checkpoint: Path | None,
) -> None:
    """Log what a start would do.

    Args:
        training: the experiment, loaded.
        distributed: of this process.
        output: of the run; not touched.
        checkpoint: from which the run would be resumed.

    Raises:
        UserError: as a start does.
    """
    folder.check_replaces_own(output)
    stops = LocalStops(distributed)
    with tempfile.TemporaryDirectory(prefix="dry-run-") as name:
        metrics = RunMetrics(Path(name), searcher=training.config["searcher"])
        with trial_context(
            distributed,
            metrics,
            stops,
            config=training.config,
            steps_completed=0,
            run=training.identity(),
        ) as context:
            loop_of(training)(training, context, stops, checkpoint=None, on_cluster=False)
    if distributed.rank != 0:
        return
    start = "from the first step"
    if checkpoint is not None:
        start = f"resumed after step {read_manifest(checkpoint)['steps']}"
    log.info("%-14s%s, %s", "output", output, start)
    log.info("nothing was started")
