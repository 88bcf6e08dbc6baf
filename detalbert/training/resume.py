"""What makes a restarted run the same run, bit for bit.

- Randomness is a function of (seed, step, rank), so no generator state has to survive.
- The data position is a function of the step (`order.TrainOrder`).
- Parameters, optimizer, schedule and GradScaler come from the checkpoint, read by safe loading.
- A config that would make it another run is refused.
"""

import contextlib
import json
from pathlib import Path
from typing import Any

from detalbert.errors import UserError
from detalbert.training.checkpoints import (
    FORMAT,
    MANIFEST,
    find_fault,
    list_checkpoints,
    newest_complete,
)


def find_checkpoint(resume: str, output_dir: Path, run: dict[str, Any]) -> Path | None:
    """The checkpoint to go on from: `--resume auto`, or a path to one. None to start afresh.

    Raises UserError for a checkpoint that is missing, damaged, of another format version, or of a
    run that differs from `run` (see `Training.identity`) in more than how it is carried out.
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
    if manifest["format"] != FORMAT:
        raise UserError(
            f"{path}: checkpoint format {manifest['format']}, this version writes {FORMAT}; "
            "go on with the version that wrote it, or start over with --resume never"
        )
    for key in sorted({*manifest["run"], *run}):
        was, now = manifest["run"].get(key), run.get(key)
        if was != now:
            raise UserError(
                f"{key}: was {was!r} in {path}, is {now!r} now; set it back, or give another "
                "--output-dir, or start over with --resume never"
            )
    return path


def kept_commits(resume: str, output_dir: Path) -> dict[str, str]:
    """Return the commits that the run to resume read from the hub, for `hub.commits`.

    Data and model are loaded before `find_checkpoint` looks at the checkpoint.
    """
    folders = [path for _, path in list_checkpoints(output_dir / "checkpoints")]
    for path in reversed(folders if resume == "auto" else [Path(resume)]):
        with contextlib.suppress(OSError, ValueError):
            return read_manifest(path).get("commits", {})
    return {}


def read_manifest(checkpoint: Path) -> dict[str, Any]:
    """The manifest of a checkpoint that `find_fault` finds whole."""
    return json.loads((checkpoint / MANIFEST).read_text())
