"""Checkpoints of a local run: atomic, checked before use, old ones pruned; the one to resume from.

A checkpoint is a folder `checkpoints/step-00000120` with Determined's files and a manifest
(manifest.py). A config that would change the run that is resumed is rejected. Pruning counts the
run's own checkpoints only (timeline.py), so it never removes the one that was just written.

What was traded: a checkpoint is hashed when it is written and again before it is used, some seconds
per gigabyte, and an older one stays on the disk until the newer one is complete.
"""

import contextlib
import json
import logging
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from determined import core
from determined.common import storage

from detalbert import hub
from detalbert.errors import UserError, first_line
from detalbert.files import remove_folder, whole_folder, writing
from detalbert.settings.values import Config
from detalbert.settings.yaml_files import read_yaml
from detalbert.sums import Json
from detalbert.training.folder import ELSEWHERE, RESUME, set_aside, step_name
from detalbert.training.manifest import (
    FORMAT,
    find_damage,
    find_fault,
    read_manifest,
    write_manifest,
)
from detalbert.training.metrics import RunMetrics
from detalbert.training.timeline import LENGTH, list_checkpoints, own_checkpoints
from detalbert.training.uploads import Collectives

log = logging.getLogger(__name__)


class LocalCheckpoints(core.DummyCheckpointContext):
    """Determined's checkpoint context over a folder of an output directory.

    Args:
        distributed: Determined's distributed context; only rank 0 writes.
        metrics: of the run, in its output directory.
        run: settings that must not change when the run is resumed; stored in every manifest.
        pruning: `checkpoint_storage:` of the experiment config, for `save_trial_latest` and
            `save_trial_best` (both 1 by default, as on a cluster).
    """

    def __init__(
        self,
        distributed: core.DistributedContext,
        metrics: RunMetrics,
        run: Config,
        pruning: Mapping[str, int],
    ) -> None:
        self.distributed = distributed
        self.metrics = metrics
        self.run = run
        self.folder = metrics.path / "checkpoints"
        super().__init__(distributed, storage.SharedFSStorageManager(str(self.folder)))
        if distributed.rank == 0:
            with writing(self.folder, cure=ELSEWHERE):
                self.folder.mkdir(parents=True, exist_ok=True)
        # How many of the latest and of the best checkpoints are kept.
        self.latest = max(1, pruning.get("save_trial_latest", 1))
        self.best = pruning.get("save_trial_best", 1)
        # By step; rank 0 only. At the start those up to the step that the run resumes from.
        self.own: dict[int, Path] = {}
        if distributed.rank == 0:
            self.own = own_checkpoints(
                self.folder,
                steps=metrics.done,
                run=run,
                validations=metrics.validations,
            )

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
            "run": self.run,
            "validations": list(self.metrics.validations),
            "commits": hub.commits,
            "predictions": dict(self.metrics.predicted),
        }
        with self._write_errors(name):
            if steps not in self.own:
                self._leave_room(name)
            with whole_folder(self.folder / name) as folder:
                yield folder, name
                (folder / "metadata.json").write_text(json.dumps(metadata, indent=2))
                write_manifest(folder, content)
        # Only now is the new one complete, and an old one may go.
        self.own[steps] = self.folder / name
        self._prune()

    def _leave_room(self, name: str) -> None:
        """Move a folder that has the name of the next checkpoint, and is not of this run, aside."""
        target = self.folder / name
        if os.path.lexists(target):
            aside = set_aside(self.metrics.path, [target])
            log.warning("%s is not a checkpoint of this run; it is now in %s", target, aside)

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
        UserError: all are damaged. Starting over silently would discard work.
    """
    checkpoints = list_checkpoints(folder)
    for _, path in reversed(checkpoints):
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


def find_checkpoint(resume: str, output_dir: Path) -> Path | None:
    """Return the checkpoint to resume from; None to start fresh.

    Args:
        resume: the value of `--resume`: auto, never, or the path of a checkpoint.
        output_dir: of the run, for auto.

    Raises:
        UserError: it is missing or damaged.
    """
    if resume == "auto":
        return newest_complete(output_dir / "checkpoints")
    if resume == "never":
        return None
    path = Path(resume)
    # The folder of a run in place of one of its checkpoints is a likely mistake.
    if (path / "checkpoints").is_dir():
        newest = newest_complete(path / "checkpoints")
        if newest is not None:
            raise UserError(
                "a run's folder", key=f"--resume {resume}", cure=f"give --resume {newest}"
            )
    fault = find_fault(path)
    if fault is not None:
        raise UserError(
            f"not a complete checkpoint ({fault})", key=f"--resume {resume}", cure="give another"
        )
    return path


def check_same_run(path: Path, run: Config, defaults: Config, config: Config) -> None:
    """Compare the settings of a checkpoint's run with those of this run.

    Args:
        path: a complete checkpoint.
        run: the current `Training.identity`.
        defaults: values of the keys that the version which wrote the checkpoint did not have.
        config: the experiment's, with the names of what `run` has sums of.

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
    before = {key: defaults.get(key) for key in run} | manifest["run"]
    for key in sorted(before):
        was, now = before[key], run.get(key)
        # A length may change, though not to less than is done already.
        is_longer = key == LENGTH and now >= manifest["steps"]
        if was == now or is_longer:
            continue
        # Of data a run keeps sums: a user knows it by name.
        if _is_sum(was) and _is_sum(now):
            run_config = _run_config(path)
            key = _changed_key(key, run_config, config)
            was = _source_of_sum(key, run_config)
            now = _source_of_sum(key, config)
        problem = f"was {was!r} in {path}, is {now!r} now"
        cure = "set it back"
        if was == now:  # one name, and other contents
            problem = f"{now!r} is not what it was in {path}"
            cure = "restore it"
        cure += ", give another --output-dir, or use --resume never"
        raise UserError(problem, key=key, cure=cure)


def _is_sum(value: object) -> bool:
    return re.fullmatch("[0-9a-f]{64}", str(value)) is not None


def _run_config(checkpoint: Path) -> Json:
    """Return the config of a checkpoint's run, {} if it cannot be read."""
    with contextlib.suppress(UserError):
        return read_yaml(checkpoint.parents[1] / "config.yaml")
    return {}


def _changed_key(key: str, before: Config, now: Config) -> str:
    """Return the key of `data:` whose new value changes the sum that `key` has: `key`, unless its
    own value is the same and another's is not, as `validation_fraction`.
    """
    old, new = _section(before, "data"), _section(now, "data")
    names = sorted(({*old, *new} - {"cache_dir"}) if old else ())
    changed = [f"data.{name}" for name in names if old.get(name) != new.get(name)]
    return key if key in changed or not changed else changed[0]


def _source_of_sum(key: str, config: Config) -> str:
    """Return what `config` has for `key`, of which a run keeps a sum, or in its place; "null" if it
    has neither.
    """
    data = _section(config, "data")
    name = key.removeprefix("data.")
    if data.get(name):
        return data[name]
    if name == "tokenizer":
        return _section(config, "hyperparameters").get("model") or "null"
    return data.get("shards") or "null"


def _section(config: Config, name: str) -> Json:
    section = config.get(name)
    return section if isinstance(section, dict) else {}
