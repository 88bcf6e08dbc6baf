"""A local run without a model: starts, validations, checkpoints, stops and kills over real files.

What decides which checkpoints are there, train.prepare_output, RunMetrics and LocalCheckpoints, is
real. The scores of a step are a function of the time line and the step, as those of training are.
"""

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from determined import core

import train
from detalbert.training.checkpoints import LocalCheckpoints, find_checkpoint
from detalbert.training.manifest import find_fault
from detalbert.training.metrics import RunMetrics
from detalbert.training.timeline import LENGTH

VALIDATION_PERIOD = 3  # steps
CHECKPOINT_PERIOD = 4


class StubRun:
    """Stand-in for a run in `folder`, which is started again and again.

    Args:
        pruning: `checkpoint_storage:`.
    """

    def __init__(self, folder: Path, pruning: dict[str, int]) -> None:
        self.folder = folder
        self.pruning = pruning
        self.length = 40
        self.searcher: dict[str, Any] = {"metric": "f1", "smaller_is_better": False}
        self.line = 0  # another one rounds differently
        self.done = 0  # steps from which the last start went on

    def scores(self, step: int) -> dict[str, float]:
        dice = random.Random(f"{self.line} {step}")
        return {"f1": float(dice.randrange(6)), "loss": float(dice.randrange(6))}

    def start(self, until: int, stopped: bool, resume: str = "auto") -> int:
        """Train until a step, where the run is stopped, with a checkpoint, or killed, without one;
        return that step."""
        self.folder.mkdir(exist_ok=True)
        run = {LENGTH: self.length, "hyperparameters.seed": 1}
        training: Any = SimpleNamespace(
            identity=lambda: run,
            defaults=dict,
            config={"searcher": self.searcher},
            hparams=SimpleNamespace(max_steps=self.length, schedule="linear"),
        )
        checkpoint = find_checkpoint(resume, self.folder)
        checkpoint = train.find_start(training, checkpoint)
        train.prepare_output(self.folder, training, checkpoint, resume)
        metrics = RunMetrics(self.folder, self.searcher)
        if checkpoint:
            metrics.restore(checkpoint)
        self.done = metrics.done
        trial: Any = SimpleNamespace(slots=1)  # of each validation its own, see `_validate`
        metrics.follow(trial, stalls=[])
        alone = core.DummyDistributedContext()
        self.checkpoints = LocalCheckpoints(alone, metrics, run, self.pruning)
        self.metrics = metrics
        if self.done < self.length:
            metrics.begin()
        last_step = max(self.done, min(until, self.length))
        ends = stopped or last_step == self.length  # a killed run saves nothing at its end
        for step in range(self.done + 1, last_step + 1):
            self._step(step, last=step == last_step and ends)
        if ends:
            metrics.finish()
        return last_step

    def _step(self, step: int, last: bool) -> None:
        saved = step % VALIDATION_PERIOD == 0 and self._validate(step)
        if not saved and (step % CHECKPOINT_PERIOD == 0 or last):
            self.save(step)

    def _validate(self, step: int) -> bool:
        """Report a validation, and save a checkpoint if it is the best (the policy "best")."""
        best = self.metrics.get_experiment_best_validation()
        scores = self.scores(step)
        trial: Any = SimpleNamespace(
            slots=1, validated=lambda: (None, scores), meter=SimpleNamespace(throughput={})
        )
        self.metrics.follow(trial, stalls=[])
        self.metrics.report_validation_metrics(step, scores)
        is_best = best is None or self._rank(scores) > self._rank({self.searcher["metric"]: best})
        if is_best:
            self.save(step)
        return is_best

    def _rank(self, scores: dict[str, float]) -> float:
        """Return the searcher's metric, of opposite sign if smaller is better."""
        sign = -1 if self.searcher["smaller_is_better"] else 1
        return sign * scores[self.searcher["metric"]]

    def save(self, step: int) -> None:
        """Write a checkpoint, and compare what is there afterwards with what has to be."""
        faults = {path: find_fault(path) for path in self._folders()}
        own = self.checkpoints.own.items()
        own_steps = {step for step, path in own if faults.get(path) is None}
        with self.checkpoints.store_path({"steps_completed": step}) as (path, name):
            (path / "state_dict.pth").write_text(f"weights of {self.line} {step}")

        complete = {path.name for path in self._folders() if find_fault(path) is None}
        assert name in complete, "the checkpoint that was just written"
        saved_steps = {*own_steps, step}
        validations = [v for v in self.metrics.validations if v["steps"] in saved_steps]
        if validations and self.pruning.get("save_trial_best", 1):
            best = max(validations, key=self._rank)
            assert f"step-{best['steps']:08d}" in complete, "the best one"
        for path, fault in faults.items():  # what is not the run's stays as it is
            assert fault is None or path.exists() or path.name == name

    def _folders(self) -> list[Path]:
        return sorted(self.folder.glob("checkpoints/step-*"))
