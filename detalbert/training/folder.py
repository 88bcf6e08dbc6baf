"""The output directory of a local run, and the reports that fill it."""

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import filelock
import numpy as np
import yaml
from determined import core
from torch.utils.tensorboard import SummaryWriter

from detalbert.atomic import whole_file, write_json
from detalbert.errors import UserError
from detalbert.hub import PRETRAINED  # noqa: F401 (for others)
from detalbert.squad.answers import Answers

# In a checkpoint, beside Determined's files:
SCORES = "scores.json"  # of its own validation, thresholds included


def step_name(steps: int) -> str:
    """The folder of the checkpoint after `steps`: 120 -> step-00000120."""
    return f"step-{steps:08d}"


def write_predictions(folder: Path, answers: Answers) -> None:
    """`predictions.json` and `null_odds.json` in the official formats: id -> text, id -> score."""
    write_json(folder / "predictions.json", answers.predictions)
    write_json(folder / "null_odds.json", answers.null_odds)


_WRITTEN = {
    "checkpoints",
    "config.yaml",
    "metrics.json",
    "null_odds.json",
    "predictions.json",
    "tensorboard",
}


class RunFolder(core.DummyTrainContext):
    """`metrics.json`, the predictions of the best validation, TensorBoard events.

    Stands in for Determined's train context, which sends the same reports to the master.
    `best` follows `searcher.metric` and `searcher.smaller_is_better`; the first of equals stays.

    Args:
        path: the output directory.
        searcher: `searcher:` of the experiment config.
        global_batch_size: windows per step, for the throughput.
    """

    def __init__(self, path: Path, searcher: dict[str, Any], global_batch_size: int) -> None:
        self.path = path
        self.metric = searcher.get("metric", "f1")
        self.sign = -1 if searcher.get("smaller_is_better", self.metric.endswith("loss")) else 1
        self.global_batch_size = global_batch_size
        self.answers: Callable[[], Answers | None] = lambda: None
        self.validations: list[dict[str, float]] = []
        self.windows = self.tokens = self.seconds = 0.0
        self.checkpoint_seconds: list[float] = []
        self._writer: SummaryWriter | None = None

    def create(self) -> None:
        """Make the directory. Raises UserError when it cannot be written."""
        path = self.path
        try:
            (path / "checkpoints").mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=path):
                pass
        except OSError as error:
            raise UserError(
                f"{path}: cannot write there ({error.strerror}); give another --output-dir"
            ) from None

    @contextlib.contextmanager
    def claimed(self) -> Iterator[None]:
        """Hold the directory for this process. Raises UserError when another one holds it."""
        lock = filelock.FileLock(self.path / ".lock")
        try:
            lock.acquire(timeout=0)
        except filelock.Timeout:
            raise UserError(
                f"{self.path}: another run is writing there; wait for it or give another "
                "--output-dir"
            ) from None
        try:
            yield
        finally:
            lock.release()

    def set_aside(self) -> None:
        """Move what an earlier run left into `previous-N/`, for `--resume never`."""
        left = [path for path in self.path.iterdir() if path.name in _WRITTEN]
        if not left:
            return
        number = 1
        while (self.path / f"previous-{number}").exists():
            number += 1
        aside = self.path / f"previous-{number}"
        aside.mkdir()
        for path in left:
            path.rename(aside / path.name)
        (self.path / "checkpoints").mkdir()

    def restore(self, checkpoint: Path, validations: list[dict[str, float]]) -> None:
        """Go on from the validations a checkpoint had behind it.

        In a fresh directory the best one's predictions come from beside that checkpoint.
        """
        self.validations = validations
        best = self.best()
        if best is None or (self.path / "predictions.json").exists():
            return
        source = checkpoint.parent / step_name(best["steps"])
        for name in ("predictions.json", "null_odds.json"):
            with contextlib.suppress(FileNotFoundError):
                shutil.copyfile(source / name, self.path / name)

    def write_config(self, config: dict[str, Any]) -> None:
        """The resolved experiment config, as `config.yaml`."""
        with whole_file(self.path / "config.yaml") as file:
            yaml.safe_dump(config, file, sort_keys=False, allow_unicode=True)

    def best(self) -> dict[str, float] | None:
        """The best validation so far."""
        return max(self.validations, key=lambda v: self.sign * v[self.metric], default=None)

    def best_steps(self, count: int) -> set[int]:
        """The steps of the `count` best validations so far."""
        ranked = sorted(self.validations, key=lambda v: -self.sign * v[self.metric])
        return {validation["steps"] for validation in ranked[:count]}

    def get_experiment_best_validation(self) -> float | None:
        best = self.best()
        return None if best is None else best[self.metric]

    def get_tensorboard_path(self) -> Path:
        return self.path / "tensorboard"

    def set_status(self, status: str) -> None:
        """The master shows it; the progress line does here."""

    def report_progress(self, progress: float) -> None:
        """The master shows it; the progress line does here."""

    def report_training_metrics(
        self,
        steps_completed: int,
        metrics: dict[str, Any],
        batch_metrics: list[dict[str, Any]] | None = None,
    ) -> None:
        windows = self.global_batch_size * len(batch_metrics or ())
        seconds = windows / metrics["examples_per_second"]
        self.windows += windows
        self.seconds += seconds
        self.tokens += metrics["tokens_per_second"] * seconds
        self._events("training", steps_completed, metrics)

    def report_validation_metrics(self, steps_completed: int, metrics: dict[str, Any]) -> None:
        entry = {k: _plain(v) for k, v in metrics.items() if k not in ("batches", "epochs")}
        self.validations.append({"steps": steps_completed, **entry})
        self._events("validation", steps_completed, entry)
        answers = self.answers()
        if answers is not None and self.best() is self.validations[-1]:
            write_predictions(self.path, answers)
        self.write_metrics()

    def write_metrics(self) -> None:
        """`metrics.json`: the best and the last validation, and how fast this process went."""
        if not self.validations:
            return
        throughput = {
            "examples_per_second": self.windows / self.seconds if self.seconds else None,
            "tokens_per_second": self.tokens / self.seconds if self.seconds else None,
            "training_seconds": self.seconds,
            "training_windows": int(self.windows),
            "checkpoint_seconds": self.checkpoint_seconds,
        }
        write_json(
            self.path / "metrics.json",
            {"best": self.best(), "last": self.validations[-1], "throughput": throughput},
        )

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def _events(self, group: str, step: int, metrics: dict[str, Any]) -> None:
        if self._writer is None:
            self._writer = SummaryWriter(str(self.get_tensorboard_path()))
        for name, value in metrics.items():
            if isinstance(value, (int, float, np.number)):
                self._writer.add_scalar(f"{group}/{name}", value, step)


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, (np.generic, np.ndarray)) else value
