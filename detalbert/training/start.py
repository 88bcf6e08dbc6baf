"""Start of a run: the checkpoint that it goes on from, and what it leaves behind.

What does not belong to the run that goes on is moved into `previous-N/`: checkpoints of a time line
that this start leaves, damaged ones, and a `metrics.json` that is not one. Nothing is deleted, so a
mistaken `--resume` costs room on the disk and no work.
"""

import logging
from pathlib import Path

from detalbert.files import writing
from detalbert.training.folder import ELSEWHERE, next_previous, set_aside
from detalbert.training.manifest import MANIFEST, read_manifest
from detalbert.training.metrics_file import METRICS_FILE, read_metrics
from detalbert.training.timeline import LENGTH, Settings, list_checkpoints, own_checkpoints

log = logging.getLogger(__name__)


def leave_other_checkpoints(checkpoint: Path, run: Settings, output: Path) -> None:
    """Move the checkpoints that are not those of the run that is resumed from `checkpoint` aside.

    Later ones are of a time line that this start leaves, or are damaged: the next start would
    resume from them. A folder without a manifest is somebody's own and stays where it is.

    Args:
        checkpoint: from which the run is resumed.
        run: settings of the run, as in manifests.
        output: folder of the run.
    """
    manifest = read_manifest(checkpoint)
    own = own_checkpoints(
        output / "checkpoints",
        steps=manifest["steps"],
        run=run,
        validations=manifest["validations"],
    )
    others = {
        path: step
        for step, path in list_checkpoints(output / "checkpoints")
        if path not in own.values() and (path / MANIFEST).is_file()
    }
    if not others:
        return

    # Earlier ones among them are of another run.
    whose = "checkpoints that are not its own"
    if min(others.values()) > manifest["steps"]:
        whose = "its later checkpoints"
    with writing(output, cure=ELSEWHERE):
        aside = set_aside(output, checkpoints=[*others])
    log.info(
        "going on from step %d of the run of %d steps; %s are now in %s",
        manifest["steps"],
        manifest["run"][LENGTH],
        whose,
        aside,
    )


def leave_broken_metrics(output: Path) -> None:
    """Move a `metrics.json` that is not one of a run aside; it is written anew by this start."""
    file = output / METRICS_FILE
    if file.is_file() and read_metrics(output) is None:
        aside = next_previous(output)
        with writing(output, cure=ELSEWHERE):
            aside.mkdir()
            file.rename(aside / METRICS_FILE)
        log.warning("%s is not that of a run: it is now in %s, and is written anew", file, aside)
