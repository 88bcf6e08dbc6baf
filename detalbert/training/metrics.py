"""Reports of a local run: `metrics.json`, predictions of the best validation, TensorBoard's events.

`metrics.json` is written before the first step of a start, at every report and validation, and at
the end: a killed start is listed up to its last report, for one small file per report.

The predictions are of the best validation so far, so a better one replaces them, and a start that
goes back to an older checkpoint takes them back with it. What is not of this run is moved aside.
"""

import json
import logging
import os
import socket
import time
from collections.abc import Collection, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import cast

import numpy as np
from determined import core
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from detalbert.engine.ranking import Searcher, Validation, best_first
from detalbert.engine.trial import StepTrial
from detalbert.files import whole_file, write_json, writing
from detalbert.squad.answers import Answers
from detalbert.sums import Json, checksum
from detalbert.training.folder import (
    PREDICTIONS,
    RESUME,
    SPANS,
    next_previous,
    read_predictions,
    step_name,
    write_predictions,
)
from detalbert.training.manifest import find_fault, read_manifest
from detalbert.training.metrics_file import METRICS_FILE, read_metrics

log = logging.getLogger(__name__)


class RunMetrics(core.DummyTrainContext):
    """Writer of `metrics.json`, the best validation's predictions, and TensorBoard events.

    Replaces Determined's train context, which reports to the master.

    Args:
        path: the output directory.
        searcher: of the config; defines the best validation, the first of equals.
    """

    # Set by `follow`, before the first report.
    trial: StepTrial
    stalls: list[float]

    def __init__(self, path: Path, searcher: Searcher) -> None:
        super().__init__(path / "tensorboard")
        self.path = path
        self.searcher = searcher
        self.validations: list[dict[str, float]] = []
        # Of the predictions in the output directory: `steps` of their validation, SHA-256 by name.
        self.predicted: Json = {}
        # Trained by this process.
        self.sums = {"windows": 0, "tokens": 0, "seconds": 0.0}
        self.start = _now()
        # Whether this start trains or validates.
        self.begun = False
        # Written by earlier starts; None if lost.
        self.before = read_metrics(path)
        self.done = 0  # steps before this start
        # Of this start alone. TensorBoard reads files in the order of their names.
        began = f"{time.time():017.6f}.{socket.gethostname()}.{os.getpid()}"
        self._chart = self.get_tensorboard_path() / f"events.out.tfevents.{began}"

    def follow(self, trial: StepTrial, stalls: list[float]) -> None:
        """Report on `trial` from now on. It cannot be given to the constructor: a trial's context
        has its metrics.

        Args:
            stalls: seconds that training waited for each checkpoint; the trial's loop appends.
        """
        self.trial = trial
        self.stalls = stalls

    def restore(self, checkpoint: Path) -> None:
        """Restore a checkpoint's validation history, and the best validation's predictions."""
        manifest = read_manifest(checkpoint)
        self.done = manifest["steps"]
        self.validations = manifest["validations"]
        best = self.best()
        if best is None:
            return
        # The checkpoint's predictions are of the validation that was best by the metric of its run.
        predicted = manifest.get("predictions") or {}
        if predicted.get("steps") == best["steps"]:
            self.predicted = predicted
        with writing(self.path, cure=RESUME):
            self._restore_predictions(checkpoint.parent, int(best["steps"]))

    def _restore_predictions(self, checkpoints: Path, steps: int) -> None:
        """Have the output directory hold the predictions of the best validation, at step `steps`:
        as they are, if they are as written, else from its checkpoint. Others are moved aside.
        """
        recorded = self.predicted.keys() - {"steps"}
        if recorded and not any(self._is_changed(name) for name in recorded):
            return

        # The checkpoint of that step has a copy, if pruning has left it.
        source = checkpoints / step_name(steps)
        names = _copied_predictions(source)
        if names:
            (self.path / SPANS).unlink(missing_ok=True)  # those of another validation
            for name in names:
                with whole_file(self.path / name, binary=True) as file:
                    file.write((source / name).read_bytes())
            self._record_predictions(steps)
        # Without a copy none are better than those of another validation.
        elif self.predicted or self._has_other_best():
            self._leave_predictions()

    def _is_changed(self, name: str) -> bool:
        """Return whether a file of predictions is not that of the best validation."""
        path = self.path / name
        return not path.is_file() or checksum(path) != self.predicted.get(name)

    def _record_predictions(self, steps: int) -> None:
        """Note whose predictions the output directory has, and their SHA-256, for the manifests."""
        sums = {}
        for name in (*PREDICTIONS, SPANS):
            if (self.path / name).is_file():
                sums[name] = checksum(self.path / name)
        self.predicted = {"steps": steps, **sums}

    def _has_other_best(self) -> bool:
        """Return whether the output directory's metrics are of another best validation."""
        return self.before is not None and self.before.get("best") != self._scores()["best"]

    def _leave_predictions(self) -> None:
        """Move the predictions of a validation that is not the best one aside."""
        aside = next_previous(self.path)
        for name in (*PREDICTIONS, SPANS):
            file = self.path / name
            if file.is_file():
                aside.mkdir(exist_ok=True)
                file.rename(aside / name)
        if aside.exists():
            log.warning("predictions that are not of the best validation are now in %s", aside)

    def best(self) -> Validation | None:
        """Return the best validation so far."""
        return next(iter(best_first(self.validations, self.searcher)), None)

    def best_answers(self) -> Answers | None:
        """Return the answers of the best validation; None if there are none, or they are lost."""
        best = self.best()
        if best is None or self.predicted.get("steps") != best["steps"]:
            return None
        return read_predictions(self.path)

    def best_steps(self, count: int, among: Collection[int]) -> set[int]:
        """Return the steps of the `count` best validations so far that are `among` these."""
        saved = [validation for validation in self.validations if validation["steps"] in among]
        best = best_first(saved, self.searcher)[:count]
        return {int(validation["steps"]) for validation in best}

    def get_experiment_best_validation(self) -> float | None:
        best = self.best()
        return None if best is None else best[self.searcher["metric"]]

    def begin(self) -> None:
        """List this start, which is about to train, in `metrics.json`."""
        self.begun = True
        self.write_metrics()

    def finish(self) -> None:
        """Write the end of this start. If it has nothing to train, `metrics.json` is only written
        if it is missing, or is not of this run.
        """
        if self.begun or self.before is None or not self._is_of_this_run(self.before):
            self.write_metrics()

    def _is_of_this_run(self, metrics: Json) -> bool:
        scores = self._scores()
        same_best = metrics.get("best") == scores.get("best")
        same_last = metrics.get("last") == scores.get("last")
        return same_best and same_last

    def report_training_metrics(
        self, steps_completed: int, metrics: Json, batch_metrics: object = None
    ) -> None:
        for name, value in self.trial.meter.throughput.items():
            self.sums[name] += value
        self._events("training", step=steps_completed, metrics=metrics)
        self.begun = True
        self.write_metrics()

    def report_validation_metrics(self, steps_completed: int, metrics: Json) -> None:
        if not self._is_drawn(steps_completed):
            self._events("validation", step=steps_completed, metrics=metrics)
        answers, scores = self.trial.validated()
        self.validations.append({"steps": steps_completed, **scores})
        if answers is not None and self.best() is self.validations[-1]:
            with writing(self.path / "predictions.json", cure=RESUME):
                write_predictions(self.path, cast(Answers, answers))
                self._record_predictions(steps_completed)
        self.begun = True
        self.write_metrics()

    def _tag(self, group: str, name: str) -> str:
        """Return the name of a chart. TensorBoard sorts them: the losses and the searcher's metric
        come first, in a group of their own.
        """
        if name == "loss":
            return f"main/loss, {group}"
        if group == "validation" and name == self.searcher["metric"]:
            return f"main/{name}"
        return f"{group}/{name}"

    def _is_drawn(self, step: int) -> bool:
        """Return whether an earlier start drew the validation of the step from which this one goes
        on: that of a run's last step may come after its last checkpoint, so it is done again.
        """
        last = (self.before or {}).get("last") or {}
        return 0 < step == self.done == last.get("steps")

    def write_metrics(self) -> None:
        """Write `metrics.json`: best and last validation, throughput, times of each start."""
        throughput = self._throughput()
        starts = self._starts()
        if starts is not None:
            throughput["starts"] = starts
        with writing(self.path / METRICS_FILE, cure=RESUME):
            write_json(self.path / METRICS_FILE, {**self._scores(), "throughput": throughput})

    def _scores(self) -> Json:
        """Return best and last validation as in JSON; {} before the first one."""
        if not self.validations:
            return {}
        scores = {"best": self.best(), "last": self.validations[-1]}
        return json.loads(json.dumps(scores))  # as read from a file, for comparisons with one

    def _throughput(self) -> Json:
        """Return the throughput of this process; until it has trained, of the one before it."""
        windows = self.sums["windows"]
        tokens = self.sums["tokens"]
        seconds = self.sums["seconds"]
        if not windows and self.before is not None:
            return dict(self.before["throughput"])
        return {
            "examples_per_second": windows / seconds if seconds else None,
            "tokens_per_second": tokens / seconds if seconds else None,
            "training_seconds": seconds,
            "training_windows": windows,
            "checkpoint_seconds": self.stalls,
            "slots": self.trial.slots,
        }

    def _starts(self) -> list[dict[str, str]] | None:
        """Return begin and last report of every start; None if those of earlier ones are lost."""
        if self.before is not None:
            earlier = self.before["throughput"].get("starts")
        else:
            earlier = None if self.done else []
        if earlier is None:
            return None
        if not self.begun:
            return earlier
        return [*earlier, {"start": self.start, "end": _now()}]

    def _events(self, group: str, step: int, metrics: Json) -> None:
        """Append to TensorBoard's events. torch's SummaryWriter uses a thread, whose errors cannot
        be caught.
        """
        events = []
        if not self._chart.exists():
            events.append(Event(file_version="brain.Event:2"))
            # What earlier starts wrote of later steps is not drawn.
            first_step = self.done + 1 if self.done else 0
            session = SessionLog(status=SessionLog.START)
            events.append(Event(step=first_step, session_log=session))
        values = []
        for name, value in metrics.items():
            # As charts these two, of Determined, would say what the axis says.
            is_number = isinstance(value, (int, float, np.number))
            if is_number and name not in ("batches", "epochs"):
                tag = self._tag(group, name)
                values.append(Summary.Value(tag=tag, simple_value=float(value)))
        events.append(Event(step=step, summary=Summary(value=values)))
        with writing(self._chart.parent, cure=RESUME):
            self._chart.parent.mkdir(parents=True, exist_ok=True)
            with self._chart.open("ab") as file:
                for event in events:
                    event.wall_time = time.time()
                    RecordWriter(file).write(event.SerializeToString())


def _copied_predictions(checkpoint: Path) -> Sequence[str]:
    """Return the files of predictions that a checkpoint has whole, none if one is damaged. Those of
    1.0.0 have no spans.
    """
    if find_fault(checkpoint, names=PREDICTIONS) is not None:
        return ()
    every = (*PREDICTIONS, SPANS)
    return PREDICTIONS if find_fault(checkpoint, names=every) is not None else every


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")
