"""Reports of a local run."""

import json
import logging
import os
import socket
import time
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
from determined import core
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from detalbert.atomic import whole_file, write_json, writing
from detalbert.integrity import checksum
from detalbert.training.checkpoints import find_fault, read_manifest
from detalbert.training.folder import PREDICTIONS, RESUME, step_name, write_predictions

log = logging.getLogger(__name__)


class RunMetrics(core.DummyTrainContext):
    """Writer of `metrics.json`, the best validation's predictions, and TensorBoard events.

    Replaces Determined's train context, which reports to the master. `path` is the output
    directory; `searcher`, of the config, defines the best validation, the first of equals.
    """

    loop: Any = None  # the Controller that reports, set once it is created
    stored: Any = staticmethod(lambda: None)  # called after each checkpoint
    fetch: Any = staticmethod(lambda checkpoint: None)  # from a bucket, if it is only there

    def __init__(self, path: Path, searcher: Mapping[str, Any]) -> None:
        super().__init__(path / "tensorboard")
        self.path = path
        self.metric = searcher["metric"]
        self.sign = -1 if searcher["smaller_is_better"] else 1
        self.validations: list[dict[str, float]] = []
        self.predicted: dict[str, str] = {}  # SHA-256 of the best one's files, by name
        self.sums = {"windows": 0, "tokens": 0, "seconds": 0.0}  # trained by this process
        self.start = _now()
        self.earlier = self._earlier_starts()
        self.done = 0  # steps before this start
        began = f"{time.time():010.0f}.{socket.gethostname()}.{os.getpid()}"
        # Of this start alone.
        self._chart = self.get_tensorboard_path() / f"events.out.tfevents.{began}"

    def _earlier_starts(self) -> list[dict[str, str]] | None:
        """Return start and end of the run's earlier starts; None if its folder lacks them."""
        try:
            return json.loads((self.path / "metrics.json").read_text())["throughput"].get("starts")
        except (OSError, ValueError, KeyError):
            return []

    def restore(self, checkpoint: Path) -> None:
        """Restore a checkpoint's validation history, and the best validation's predictions."""
        manifest = read_manifest(checkpoint)
        self.done, self.validations = manifest["steps"], manifest["validations"]
        self.predicted = manifest.get("predictions") or {}
        best = self.best()
        if best is not None:
            self._restore_predictions(checkpoint.parent / step_name(int(best["steps"])))

    def _restore_predictions(self, source: Path) -> None:
        """Copy predictions from `source`, the best validation's checkpoint, unless the output
        directory has them as they were written. If that checkpoint is gone, damaged ones go, too.
        """
        changed = [name for name in PREDICTIONS if self._is_changed(name)]
        if self.predicted and not changed:
            return
        if self.predicted:  # else it has none, or is of an older version, which kept no sums
            self.fetch(source)
        with writing(self.path, RESUME):
            if find_fault(source, PREDICTIONS) is None:
                for name in PREDICTIONS:
                    with whole_file(self.path / name, binary=True) as file:
                        file.write((source / name).read_bytes())
            elif self.predicted:
                for path in [self.path / name for name in PREDICTIONS]:
                    if path.is_file():
                        path.unlink()
                        said = "%s: not of %s, the best validation, nor is its checkpoint; removed"
                        log.warning(said, path, source.name)

    def _is_changed(self, name: str) -> bool:
        """Return whether a file of predictions is not that of the best validation."""
        path = self.path / name
        return not path.is_file() or checksum(path) != self.predicted.get(name)

    def best(self) -> dict[str, float] | None:
        """Return the best validation so far."""
        return max(self.validations, key=lambda v: self.sign * v[self.metric], default=None)

    def best_steps(self, count: int) -> set[int]:
        """Return the steps of the `count` best validations so far."""
        ranked = sorted(self.validations, key=lambda v: -self.sign * v[self.metric])
        return {int(validation["steps"]) for validation in ranked[:count]}

    def get_experiment_best_validation(self) -> float | None:
        return best[self.metric] if (best := self.best()) else None

    def report_training_metrics(
        self, steps_completed: int, metrics: dict[str, Any], batch_metrics: Any = None
    ) -> None:
        for name, value in self.loop.trial.meter.throughput.items():
            self.sums[name] += value
        self._events("training", steps_completed, metrics)

    def report_validation_metrics(self, steps_completed: int, metrics: dict[str, Any]) -> None:
        charted = {k: v for k, v in metrics.items() if k not in ("batches", "epochs")}
        self._events("validation", steps_completed, charted)
        answers, scores = self.loop.trial.validated()
        self.validations.append({"steps": steps_completed, **scores})
        if answers is not None and self.best() is self.validations[-1]:
            with writing(self.path / "predictions.json", RESUME):
                write_predictions(self.path, answers)
                self.predicted = {name: checksum(self.path / name) for name in PREDICTIONS}
        self.write_metrics()

    def write_metrics(self) -> None:
        """Write `metrics.json`: best and last validation, throughput, times of each start."""
        windows, tokens, seconds = (self.sums[k] for k in ("windows", "tokens", "seconds"))
        throughput: dict[str, Any] = {
            "examples_per_second": windows / seconds if seconds else None,
            "tokens_per_second": tokens / seconds if seconds else None,
            "training_seconds": seconds,
            "training_windows": windows,
            "checkpoint_seconds": self.loop.stalls,
        }
        if self.earlier is not None:
            throughput["starts"] = [*self.earlier, {"start": self.start, "end": _now()}]
        scores = {"best": self.best(), "last": self.validations[-1]} if self.validations else {}
        metrics = json.dumps({**scores, "throughput": throughput})
        # NaN, in older checkpoints' validations, is no JSON.
        plain = json.loads(metrics, parse_constant=lambda _: None)
        with writing(self.path / "metrics.json", RESUME):
            write_json(self.path / "metrics.json", plain)

    def _events(self, group: str, step: int, metrics: dict[str, Any]) -> None:
        """Append to TensorBoard's events. torch's SummaryWriter uses a thread, whose errors cannot
        be caught.
        """
        values = [
            Summary.Value(tag=f"{group}/{name}", simple_value=float(value))
            for name, value in metrics.items()
            if isinstance(value, (int, float, np.number))
        ]
        events: list[dict[str, Any]] = [{"step": step, "summary": Summary(value=values)}]
        if not self._chart.exists():
            if self.done:  # what earlier starts wrote of later steps is not drawn
                log = SessionLog(status=SessionLog.START)
                events.insert(0, {"step": self.done + 1, "session_log": log})
            events.insert(0, {"file_version": "brain.Event:2"})
        with writing(self._chart.parent, RESUME):
            self._chart.parent.mkdir(parents=True, exist_ok=True)
            with self._chart.open("ab") as file:
                for fields in events:
                    event = Event(wall_time=time.time(), **fields)
                    RecordWriter(file).write(event.SerializeToString())


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")
