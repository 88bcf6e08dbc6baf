"""Checkpoints of a local run: atomic, checked before use, old ones pruned; the one to resume from.

A checkpoint is a folder `checkpoints/step-00000120` with Determined's files and a manifest
(manifest.py). A run goes on from its newest complete one; later ones are damaged, do not count in
pruning, and are replaced when the run is there again. A config that would change the run that is
resumed is rejected.

What was traded: a checkpoint is hashed when it is written and again before it is used, some seconds
per gigabyte, and an older one stays on the disk until the newer one is complete.
"""

import contextlib
import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from determined import core
from determined.common import storage

from detalbert import hub
from detalbert.errors import UserError, first_line
from detalbert.files import remove_folder, whole_folder
from detalbert.settings.values import Config
from detalbert.sums import Json
from detalbert.training.folder import MOVE, RESUME, list_checkpoints, step_name
from detalbert.training.manifest import (
    FORMAT,
    MANIFEST,
    find_damage,
    find_fault,
    read_manifest,
    write_manifest,
)
from detalbert.training.metrics import RunMetrics
from detalbert.training.uploads import Collectives

log = logging.getLogger(__name__)
# The length of a run; it may change, but not to less than is done.
LENGTH = "hyperparameters.max_steps"


class LocalCheckpoints(core.DummyCheckpointContext):
    """Determined's checkpoint context over a folder of an output directory.

    Args:
        distributed: Determined's distributed context; only rank 0 writes.
        metrics: of the run, in its output directory.
        run: returns the settings that must not change when the run is resumed; every manifest has
            them.
        pruning: `checkpoint_storage:` of the experiment config, for `save_trial_latest` and
            `save_trial_best` (both 1 by default, as on a cluster).
    """

    def __init__(
        self,
        distributed: core.DistributedContext,
        metrics: RunMetrics,
        run: Callable[[], Config],
        pruning: Mapping[str, int],
    ) -> None:
        self.distributed = distributed
        self.metrics = metrics
        self.run = run
        self.folder = metrics.path / "checkpoints"
        super().__init__(distributed, storage.SharedFSStorageManager(str(self.folder)))
        # How many of the latest and of the best checkpoints are kept.
        self.latest = max(1, pruning.get("save_trial_latest", 1))
        self.best = pruning.get("save_trial_best", 1)
        # The run's complete checkpoints by step; rank 0 only.
        self.own: dict[int, Path] = {}
        if distributed.rank == 0:
            for step, path in list_checkpoints(self.folder):
                if step <= metrics.done and find_damage(path) is None:
                    self.own[step] = path

    @contextlib.contextmanager
    def store_path(
        self, metadata: Json | None = None, *, shard: bool = False
    ) -> Iterator[tuple[Path, str]]:
        """Yield a folder to fill and its final name; rank 0 only."""
        assert metadata is not None
        steps = int(metadata["steps_completed"])
        name = step_name(steps)
        # Copied now: a background write may end after later validations.
        content = {
            "steps": steps,
            "run": self.run(),
            "validations": self.metrics.validations(),
            "commits": hub.commits,
        }
        with self._write_errors(name):
            self.folder.mkdir(exist_ok=True)
            with whole_folder(self.folder / name) as folder:
                yield folder, name
                (folder / "metadata.json").write_text(json.dumps(metadata, indent=2))
                write_manifest(folder, content)
        # Only now is the new one complete, and an old one may go.
        self.own[steps] = self.folder / name
        self._prune()

    def _prune(self) -> None:
        """Remove the run's own checkpoints but the latest ones, and the best that are there."""
        # One that was damaged meanwhile must not count as the latest or the best.
        self.own = {step: path for step, path in self.own.items() if find_damage(path) is None}
        latest = sorted(self.own)[-self.latest :]
        best = self.metrics.best_steps(self.best, among=self.own)
        for step in sorted(self.own.keys() - {*latest, *best}):
            remove_folder(self.own[step])

    @contextlib.contextmanager
    def store_together(self, metadata: Json, peers: Collectives) -> Iterator[tuple[Path, str]]:
        """Yield folder and name as `store_path`, on all ranks; renamed once all have filled it.

        May end in another thread than it began, for which `peers` replaces `distributed`.
        """
        with contextlib.ExitStack() as stack:
            place = None
            if self.distributed.rank == 0:
                place = stack.enter_context(self.store_path(metadata))
            folder, name = self.distributed.broadcast(place)
            with self._write_errors(name):
                yield folder, name
            # A barrier: rank 0 renames the folder when all ranks are done with it.
            peers.allgather(None)

    @contextlib.contextmanager
    def _write_errors(self, name: str) -> Iterator[None]:
        """Convert write errors to a UserError that names the checkpoint and says how to resume."""
        try:
            yield
        except (OSError, RuntimeError) as error:  # torch.save raises RuntimeError on a full disk
            reason = first_line(error)
            # torch names the place in its own source code, and not the reason.
            if "inline_container" in str(error) or "PytorchStreamWriter" in str(error):
                reason = "the disk is full"
            raise UserError(
                f"cannot write checkpoint {name} ({reason})", key=str(self.folder), cure=RESUME
            ) from None

    @contextlib.contextmanager
    def restore_path(self, storage_id: str, *_: object, **__: object) -> Iterator[Path]:
        """Yield the folder of a checkpoint; `storage_id` is its path."""
        yield Path(storage_id)


def newest_complete(folder: Path) -> Path | None:
    """Return the newest undamaged checkpoint in `folder`, or None; log a warning per damaged one.

    Raises:
        UserError: all are damaged, for starting over silently would discard work, or one is no
            run's, and would be replaced.
    """
    checkpoints = [path for _, path in list_checkpoints(folder)]
    for path in checkpoints:
        if not (path / MANIFEST).is_file():
            raise UserError("no run wrote it", key=str(path), cure=MOVE)
    for path in reversed(checkpoints):
        fault = find_fault(path)
        if fault is None:
            return path
        log.warning("checkpoint %s is damaged (%s); using the one before it", path, fault)
    if checkpoints:
        raise UserError(
            f"all {len(checkpoints)} checkpoints are damaged",
            key=str(folder),
            cure="restore one, or start over with --resume never",
        )
    return None


def find_checkpoint(resume: str, output: Path) -> Path | None:
    """Return the checkpoint to resume from; None to start fresh.

    Args:
        resume: the value of `--resume`: auto, never, or the path of a checkpoint.
        output: directory of the run, whose newest checkpoint is that of auto.

    Raises:
        UserError: it is missing or damaged, or `output` goes on from another one.
    """
    if resume == "never":
        return None
    newest = newest_complete(output / "checkpoints")
    if resume == "auto":
        return newest
    path = Path(resume)
    fault = find_fault(path)
    if fault is not None:
        raise UserError(
            f"not a complete checkpoint ({fault})",
            key=f"--resume {resume}",
            cure="give a folder checkpoints/step-N of a run",
        )
    if newest is not None and newest.resolve() != path.resolve():
        raise UserError(
            f"{output} goes on from {newest.name}",
            key=f"--resume {resume}",
            cure="give another --output-dir, or leave --resume out",
        )
    return path


def check_same_run(path: Path, run: Config) -> None:
    """Compare the settings of a checkpoint's run with those of this run.

    Args:
        path: a complete checkpoint.
        run: the current `Training.identity`.

    Raises:
        UserError: the checkpoint is of another run, or of another format.
    """
    manifest = read_manifest(path)
    if manifest["format"] != FORMAT:
        raise UserError(
            f"checkpoint format {manifest['format']} is not of this version ({FORMAT})",
            key=str(path),
            cure="go on with its own, or start over with --resume never",
        )
    if "run" not in manifest:
        raise UserError(
            "a checkpoint of a cluster", key=f"--resume {path}", cure="give one of a local run"
        )
    before = manifest["run"]
    for key in sorted(before.keys() | run.keys()):
        was, now = before.get(key), run.get(key)
        # A length may change, though not to less than is done already.
        is_longer = key == LENGTH and now >= manifest["steps"]
        if was == now or is_longer:
            continue
        problem = f"was {was!r} in {path}, is {now!r} now"
        if re.fullmatch("[0-9a-f]{64}", str(was)):  # the sum of data
            problem = f"is not what it was in {path}"
        raise UserError(
            problem,
            key=key,
            cure="set it back, give another --output-dir, or use --resume never",
        )
