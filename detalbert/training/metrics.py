"""Reports of a local run: `metrics.json`, predictions of the best validation, TensorBoard's events.

`metrics.json` is written at every report and validation, and at the end: a killed start is listed
up to its last report, for one small file per report. The steps and validations are those of the
trial's history. TensorBoard's writer has a thread, and is flushed at each report, so that a full
disk ends the run there.
"""

import json
import logging
from collections.abc import Collection, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import cast

import numpy as np
from determined import core
from torch.utils.tensorboard import SummaryWriter

from detalbert.engine.history import Searcher, Validation, best_first
from detalbert.engine.trial import StepTrial
from detalbert.files import write_own, writing
from detalbert.run_page.run import REPORT
from detalbert.squad.answers import Answers
from detalbert.sums import Json
from detalbert.training.folder import (
    METRICS_FILE,
    PREDICTIONS,
    RESUME,
    read_metrics,
    read_predictions,
    replace_predictions,
    step_name,
)
from detalbert.training.manifest import find_fault

log = logging.getLogger(__name__)


class RunMetrics(core.DummyTrainContext):
    """Writer of `metrics.json`, the best validation's predictions, and TensorBoard events.

    Replaces Determined's train context, which reports to the master.

    Args:
        path: the output directory.
        searcher: of the config; defines the best validation, the first of equals.
        done: steps before this start.
    """

    # Both set before the first report: a trial's context has its metrics.
    trial: StepTrial
    stalls: list[float]  # seconds that training waited for each checkpoint

    def __init__(self, path: Path, searcher: Searcher, done: int = 0) -> None:
        super().__init__(path / "tensorboard")
        self.path = path
        self.searcher = searcher
        self.done = done
        # Trained by this process.
        self.sums = {"windows": 0, "tokens": 0, "seconds": 0.0}
        self.start = _now()
        self.begun = False  # whether this start trains or validates
        self.before = read_metrics(path)  # written by earlier starts
        self._events: SummaryWriter | None = None

    def validations(self) -> list[Validation]:
        """Return the metrics of each validation of the run, with `steps`, oldest first."""
        return [validation.flat() for validation in self.trial.history.validations]

    def best(self) -> Validation | None:
        """Return the best validation so far."""
        return next(iter(best_first(self.validations(), self.searcher)), None)

    def best_steps(self, count: int, among: Collection[int]) -> set[int]:
        """Return the steps of the `count` best validations so far that are `among` these."""
        saved = [validation for validation in self.validations() if validation["steps"] in among]
        best = best_first(saved, self.searcher)[:count]
        return {validation["steps"] for validation in best}

    def get_experiment_best_validation(self) -> float | None:
        # Determined asks when the last validation is recorded, and not yet reported.
        earlier = best_first(self.validations()[:-1], self.searcher)
        return earlier[0][self.searcher["metric"]] if earlier else None

    def best_answers(self) -> Answers | None:
        """Return the answers of the best validation; None if there are none, or they are lost."""
        best = self.best()
        return None if best is None else read_predictions(self.path, step=best["steps"])

    def restore_predictions(self, checkpoints: Path) -> None:
        """Have the output directory hold the predictions of the best validation: as they are, or
        from its checkpoint in `checkpoints`, if pruning has left that; else none.
        """
        best = self.best()
        if best is None or self.best_answers() is not None:
            return
        answers = None
        checkpoint = checkpoints / step_name(best["steps"])
        if find_fault(checkpoint, names=PREDICTIONS) is None:
            answers = read_predictions(checkpoint, step=best["steps"])
        if answers is not None:
            self._write_predictions(answers, step=best["steps"])
        elif (self.path / PREDICTIONS[0]).exists():
            log.warning("the predictions of the best validation are lost")
            with writing(self.path, cure=RESUME):
                for name in PREDICTIONS:
                    (self.path / name).unlink(missing_ok=True)

    def finish(self) -> None:
        """Write the end of this start. If it has nothing to train, `metrics.json` is only written
        if it is missing, or is not of this run.
        """
        scores = self._scores()
        before = self.before or {}
        if self.begun or scores != {name: before.get(name) for name in scores}:
            self.write_metrics()
        if self._events is not None:
            self._events.close()

    def report_training_metrics(
        self, steps_completed: int, metrics: Json, batch_metrics: object = None
    ) -> None:
        for name, value in self.trial.meter.throughput.items():
            self.sums[name] += value
        self._draw("training", step=steps_completed, metrics=metrics)
        self.begun = True
        self.write_metrics()

    def report_validation_metrics(self, steps_completed: int, metrics: Json) -> None:
        self._draw("validation", step=steps_completed, metrics=metrics)
        answers, _ = self.trial.validated()
        best = self.best()
        if answers is not None and best is not None and best["steps"] == steps_completed:
            self._write_predictions(cast(Answers, answers), step=steps_completed)
        self.begun = True
        self.write_metrics()

    def write_metrics(self) -> None:
        """Write `metrics.json`: best and last validation, throughput, times of each start."""
        throughput = self._throughput()
        starts = self.before["throughput"]["starts"] if self.before is not None else []
        if self.begun:
            starts = [*starts, {"start": self.start, "end": _now()}]
        throughput["starts"] = starts
        content = {**self._scores(), "throughput": throughput}
        self._write({METRICS_FILE: json.dumps(content, indent=1, ensure_ascii=False)})

    def write_report(self, text: str) -> None:
        """Write the page of the run."""
        self._write({REPORT: text})

    def _write_predictions(self, answers: Answers, step: int) -> None:
        with writing(self.path, cure=RESUME, what=", ".join(PREDICTIONS)):
            replace_predictions(self.path, answers, step=step)

    def _write(self, texts: Mapping[str, str]) -> None:
        """Write files of the run by name."""
        with writing(self.path, cure=RESUME, what=", ".join(texts)):
            write_own(self.path, texts)

    def _scores(self) -> Json:
        """Return best and last validation as in JSON; {} before the first one."""
        validations = self.validations()
        if not validations:
            return {}
        scores = {"best": self.best(), "last": validations[-1]}
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

    def _draw(self, group: str, step: int, metrics: Json) -> None:
        """Append to TensorBoard's events."""
        with writing(self.path / "tensorboard", cure=RESUME):
            if self._events is None:
                # What earlier starts wrote of later steps is not drawn.
                first_step = self.done + 1 if self.done else 0
                self._events = SummaryWriter(self.path / "tensorboard", purge_step=first_step)
            for name, value in metrics.items():
                # As charts these two, of Determined, would say what the axis says.
                is_number = isinstance(value, (int, float, np.number))
                if is_number and name not in ("batches", "epochs"):
                    self._events.add_scalar(self._tag(group, name), value, global_step=step)
            self._events.flush()

    def _tag(self, group: str, name: str) -> str:
        """Return the name of a chart. TensorBoard sorts them: the losses and the searcher's metric
        come first, in a group of their own.
        """
        if name == "loss":
            return f"main/loss, {group}"
        if group == "validation" and name == self.searcher["metric"]:
            return f"main/{name}"
        return f"{group}/{name}"


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")
