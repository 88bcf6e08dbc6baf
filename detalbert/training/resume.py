"""Resuming of a run, so that it ends bitwise identical to an uninterrupted one.

- Randomness is a function of (seed, step, rank), so no generator state is saved.
- The data position is a function of the step (`order.TrainOrder`).
- Parameters, optimizer, schedule and GradScaler come from the checkpoint, read by safe loading.
- A config that would change the run is rejected.
"""

from pathlib import Path
from typing import Any

from detalbert.errors import UserError
from detalbert.training.checkpoints import (
    FORMAT,
    find_fault,
    list_checkpoints,
    newest_complete,
    read_manifest,
)


def find_checkpoint(
    resume: str, output_dir: Path, run: dict[str, Any], defaults: dict[str, Any]
) -> Path | None:
    """Return the checkpoint to resume from, for `--resume auto` or a path; None to start fresh.

    `run` is the current `Training.identity`; `defaults` are, by config key, the values of runs
    whose version did not know the key. Raises UserError if the checkpoint is missing, damaged, of
    another format version, or of a run that differs from `run`.
    """
    if resume == "auto":
        path = newest_complete(output_dir / "checkpoints")
        if path is None:
            return None
    else:
        path = Path(resume)
        fault = find_fault(path)
        if fault:
            raise UserError(f"--resume {path}: not a complete checkpoint ({fault}); give another")
    manifest = read_manifest(path)
    if manifest["format"] not in (1, FORMAT):
        raise UserError(
            f"{path}: checkpoint format {manifest['format']}, this version writes {FORMAT}; "
            "go on with the version that wrote it, or start over with --resume never"
        )
    if "run" not in manifest:
        raise UserError(f"--resume {path}: a checkpoint of a cluster; give one of a local run")
    before = {**{key: defaults.get(key) for key in run}, **manifest["run"]}
    for key in sorted(before):
        was, now = before[key], run.get(key)
        if was != now:
            raise UserError(
                f"{key}: was {was!r} in {path}, is {now!r} now; set it back, or give another "
                "--output-dir, or start over with --resume never"
            )
    return path


def kept_commits(resume: str, output_dir: Path) -> dict[str, str]:
    """Return the commits that the run to resume read from the hub, for `hub.commits`. Data and
    model are loaded before `find_checkpoint` reads the checkpoint.
    """
    folders = [path for _, path in list_checkpoints(output_dir / "checkpoints")]
    for path in reversed(folders if resume == "auto" else [Path(resume)]):
        if find_fault(path, ()) is None:  # the manifest itself
            return read_manifest(path).get("commits", {})
    return {}
