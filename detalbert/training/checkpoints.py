"""Checkpoints of a local run: atomic, checked before use, old ones pruned; the one to resume from.

A checkpoint is a folder `checkpoints/step-00000120` with Determined's files and a manifest that
lists every file's size and SHA-256, and has a sum of its own. A config that would change the run
that is resumed is rejected.
"""

import contextlib
import json
import logging
import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from determined import core
from determined.common import storage

from detalbert import hub
from detalbert.atomic import whole_folder, writing
from detalbert.errors import UserError, first_line
from detalbert.integrity import SUM, checksum, is_sealed, seal
from detalbert.settings.yaml_files import read_yaml
from detalbert.training.folder import ELSEWHERE, RESUME, step_name

FORMAT = 2  # 1, of commit 596c121: a manifest without a sum of its own
MANIFEST = "manifest.json"
LENGTH = "hyperparameters.max_steps"  # of a run; may change, but not to less than is done
log = logging.getLogger(__name__)


class LocalCheckpoints(core.DummyCheckpointContext):
    """Determined's checkpoint context over a folder of an output directory.

    Args:
        distributed: Determined's distributed context; only rank 0 writes.
        metrics: the run's RunMetrics, which knows the output directory.
        run: settings that must not change when the run is resumed; stored in every manifest.
        pruning: `checkpoint_storage:` of the experiment config, for `save_trial_latest` and
            `save_trial_best` (both 1 by default, as on a cluster).
    """

    def __init__(
        self, distributed: core.DistributedContext, metrics: Any, run: dict[str, Any], pruning: Any
    ) -> None:
        self.distributed, self.metrics, self.run = distributed, metrics, run
        self.folder = metrics.path / "checkpoints"
        super().__init__(distributed, storage.SharedFSStorageManager(str(self.folder)))
        if distributed.rank == 0:
            with writing(self.folder, ELSEWHERE):
                self.folder.mkdir(parents=True, exist_ok=True)
        self.latest = max(1, pruning.get("save_trial_latest", 1))
        self.best = pruning.get("save_trial_best", 1)

    @contextlib.contextmanager
    def store_path(
        self, metadata: Any = None, *, shard: bool = False
    ) -> Iterator[tuple[Path, str]]:
        """Yield a folder to fill and its final name; rank 0 only."""
        steps = int(metadata["steps_completed"])
        name = step_name(steps)
        # As they are now: this may end after others.
        validations, spared = list(self.metrics.validations), self.metrics.best_steps(self.best)
        predictions = self.metrics.predicted
        with self._told(name), whole_folder(self.folder / name) as folder:
            yield folder, name
            (folder / "metadata.json").write_text(json.dumps(metadata, indent=2))
            facts = {"steps": steps, "run": self.run, "validations": validations}
            facts["commits"] = hub.commits
            facts["predictions"] = predictions
            write_manifest(folder, facts)
        for older, folder in list_checkpoints(self.folder)[: -self.latest]:
            if older not in spared:
                shutil.rmtree(folder, ignore_errors=True)
        self.metrics.stored()

    @contextlib.contextmanager
    def store_together(self, metadata: dict[str, Any], peers: Any) -> Iterator[tuple[Path, str]]:
        """Yield folder and name as `store_path`, on all ranks; renamed once all have filled it.

        May end in another thread than it began, for which `peers` replaces `distributed`.
        """
        with contextlib.ExitStack() as stack:
            chief = self.distributed.rank == 0
            place = stack.enter_context(self.store_path(metadata)) if chief else None
            folder, name = self.distributed.broadcast(place)
            with self._told(name):
                yield folder, name
            peers.allgather(None)

    @contextlib.contextmanager
    def _told(self, name: str) -> Iterator[None]:
        """Convert write errors to a UserError that names the checkpoint and says how to resume."""
        try:
            yield
        except (OSError, RuntimeError) as error:  # torch.save raises RuntimeError on a full disk
            full = "inline_container" in str(error) or "PytorchStreamWriter" in str(error)
            why = "the disk is full" if full else first_line(error)
            said = f"cannot write checkpoint {name} ({why}); {RESUME}"
            raise UserError(f"{self.folder}: {said}") from None

    @contextlib.contextmanager
    def restore_path(self, storage_id: str, *_: Any, **__: Any) -> Iterator[Path]:
        """Yield the folder of a checkpoint; `storage_id` is its path."""
        yield Path(storage_id)


def list_checkpoints(folder: Path) -> list[tuple[int, Path]]:
    """Return (steps, path) of all finished checkpoints in `folder`, oldest first."""
    named = [path for path in folder.glob("step-*") if re.fullmatch("step-[0-9]+", path.name)]
    return sorted((int(path.name[5:]), path) for path in named)


def newest_complete(folder: Path) -> Path | None:
    """Return the newest undamaged checkpoint, with a warning per damaged one, or None. Raises
    UserError if all are damaged: starting over silently would discard work.
    """
    found = list_checkpoints(folder)
    for _, path in reversed(found):
        fault = find_fault(path)
        if fault is None:
            return path
        log.warning("checkpoint %s is damaged (%s); using the one before it", path, fault)
    if found:
        said = f"all {len(found)} checkpoints are damaged"
        raise UserError(f"{folder}: {said}; restore one, or start over with --resume never")
    return None


def find_checkpoint(resume: str, output_dir: Path) -> Path | None:
    """Return the checkpoint that `--resume` selects, for auto, never or a path; None to start
    fresh. Raises UserError if it is missing or damaged.
    """
    if resume == "auto":
        return newest_complete(output_dir / "checkpoints")
    if (runs := Path(resume) / "checkpoints").is_dir() and (newest := newest_complete(runs)):
        raise UserError(f"--resume {resume}: a run's folder; give --resume {newest}")
    if resume != "never" and (fault := find_fault(Path(resume))):
        raise UserError(f"--resume {resume}: not a complete checkpoint ({fault}); give another")
    return None if resume == "never" else Path(resume)


def check_same_run(
    path: Path, run: dict[str, Any], defaults: dict[str, Any], config: dict[str, Any]
) -> None:
    """Raise UserError if checkpoint `path` is of another format version, or of another run.

    `run` is the current `Training.identity`; `defaults` are the values of runs whose version did
    not know a key; `config` has the names of what `run` has sums of.
    """
    manifest = read_manifest(path)
    if manifest["format"] not in (1, FORMAT):
        said = f"checkpoint format {manifest['format']} is not of this version ({FORMAT})"
        raise UserError(f"{path}: {said}; go on with its own, or start over with --resume never")
    if "run" not in manifest:
        raise UserError(f"--resume {path}: a checkpoint of a cluster; give one of a local run")
    before = {**{key: defaults.get(key) for key in run}, **manifest["run"]}
    for key in sorted(before):
        was, now = before[key], run.get(key)
        if was == now or key == LENGTH and now >= manifest["steps"]:
            continue
        if all(re.fullmatch("[0-9a-f]{64}", str(value)) for value in (was, now)):  # two sums
            was, now = (_named(each, key) for each in (_run_config(path), config))
        said = f"was {was!r} in {path}, is {now!r} now; set it back"
        if was == now:  # the names of other contents
            said = f"{now!r} is not what it was in {path}; restore it"
        raise UserError(f"{key}: {said}, give another --output-dir, or use --resume never")


def _run_config(checkpoint: Path) -> dict[str, Any]:
    """Return the config of a checkpoint's run, {} if it cannot be read."""
    with contextlib.suppress(UserError):
        return read_yaml(checkpoint.parents[1] / "config.yaml")
    return {}


def _named(config: dict[str, Any], key: str) -> str:
    """Return what `config` has for `key`, of which a run keeps a sum, or for what stands for it."""
    data, name = config.get("data") or {}, key.removeprefix("data.")
    model = (config.get("hyperparameters") or {}).get("model")
    return data.get(name) or (model if name == "tokenizer" else data.get("shards")) or "another"


def find_fault(path: Path, names: Iterable[str] | None = None) -> str | None:
    """Return why `path` is not a complete checkpoint, or None; `names`: files, default: all."""
    try:
        manifest = read_manifest(path)
        if not is_sealed(manifest) and (SUM in manifest or manifest["format"] != 1):
            return f"{MANIFEST} is not as it was written"
        if path.name.startswith("step-"):
            if path.name != step_name(manifest["steps"]):
                return f"{MANIFEST} is of step {manifest['steps']}"
            dict(manifest["run"]), [v["steps"] for v in manifest["validations"]]
        files = manifest["files"]
        for name in files if names is None else sorted(names):
            file, facts = path / name, files[name]
            as_written = file.stat().st_size == facts["bytes"] and file.is_file()
            as_written &= file.resolve().is_relative_to(path.resolve())
            if not as_written or checksum(file) != facts["sha256"]:
                return f"{name} is not as it was written"
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RuntimeError) as error:
        return f"{MANIFEST} cannot be read: {first_line(error)}"
    return None


def read_manifest(checkpoint: Path) -> dict[str, Any]:
    """Return the manifest of a checkpoint that `find_fault` accepts."""
    return json.loads((checkpoint / MANIFEST).read_text())


def write_manifest(
    folder: Path, facts: dict[str, Any], files: dict[str, Any] | None = None
) -> None:
    """List all files of a checkpoint, by default those of `folder`, with `facts`."""
    listed = {"format": FORMAT, **facts, "files": files or describe_files(folder)}
    (folder / MANIFEST).write_text(json.dumps(seal(listed), indent=1))


def describe_files(folder: Path) -> dict[str, Any]:
    """Return size in bytes and SHA-256 of every file in `folder`, by its path there."""
    files = {f.relative_to(folder).as_posix(): f for f in sorted(folder.rglob("*")) if f.is_file()}
    return {
        name: {"bytes": file.stat().st_size, "sha256": checksum(file)}
        for name, file in files.items()
    }
