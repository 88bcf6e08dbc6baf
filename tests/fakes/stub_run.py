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
from detalbert.training.checkpoints import LocalCheckpoints
from detalbert.training.manifest import find_fault
from detalbert.training.metrics import RunMetrics
from detalbert.training.output import Output
from detalbert.training.start import select_checkpoint
from detalbert.training.timeline import LENGTH

VALIDATION, CHECKPOINT = 3, 4  # periods in steps


class StubRun:
    """A run in `folder`, which is started again and again.

    Args:
        pruning: `checkpoint_storage:`.
    """

    def __init__(self, folder: Path, pruning: dict[str, int]) -> None:
        self.folder, self.pruning = folder, pruning
        self.length = 40
        self.searcher: dict[str, Any] = {"metric": "f1", "smaller_is_better": False}
        self.line = 0  # another one rounds differently
        self.done = 0  # steps from which the last start went on

    def scores(self, step: int) -> dict[str, float]:
        dice = random.Random(f"{self.line} {step}")
        return {"f1": float(dice.randrange(6)), "loss": float(dice.randrange(6))}

    def start(self, until: int, stopped: bool, resume: str = "auto") -> int:
        """Train until a step, where the run is stopped, with a checkpoint, or killed, without one.
        Return that step.
        """
        output = Output(str(self.folder))
        self.folder.mkdir(exist_ok=True)
        run = {LENGTH: self.length, "hyperparameters.seed": 1}
        training: Any = SimpleNamespace(
            identity=lambda: run,
            defaults=dict,
            config={"searcher": self.searcher},
            hparams=SimpleNamespace(max_steps=self.length, schedule="linear"),
        )
        checkpoint = select_checkpoint(resume, output)
        checkpoint = train.prepare_output(output, training, checkpoint, resume)
        metrics = RunMetrics(self.folder, self.searcher)
        if checkpoint:
            metrics.restore(checkpoint)
        self.done = metrics.done
        trial: Any = None  # of each validation its own, see `_step`
        metrics.follow(trial, stalls=[])
        alone = core.DummyDistributedContext()
        self.checkpoints = LocalCheckpoints(alone, metrics, run, self.pruning)
        self.metrics = metrics
        if self.done < self.length:
            metrics.begin()
        until = max(self.done, min(until, self.length))
        for step in range(self.done + 1, until + 1):
            self._step(step, last=step == until and (stopped or until == self.length))
        if stopped or until == self.length:
            metrics.finish()
        return until

    def _step(self, step: int, last: bool) -> None:
        saved = False
        if step % VALIDATION == 0:
            best = self.metrics.get_experiment_best_validation()
            scores = self.scores(step)
            trial: Any = SimpleNamespace(
                validated=lambda: (None, scores), meter=SimpleNamespace(throughput={})
            )
            self.metrics.follow(trial, stalls=[])
            self.metrics.report_validation_metrics(step, scores)
            value = scores[self.searcher["metric"]]
            sign = -1 if self.searcher["smaller_is_better"] else 1
            if best is None or sign * value > sign * best:  # the policy "best"
                self.save(step)
                saved = True
        if not saved and (step % CHECKPOINT == 0 or last):
            self.save(step)

    def save(self, step: int) -> None:
        """Write a checkpoint, and compare what is there afterwards with what has to be."""
        before = {path: find_fault(path) for path in self._folders()}
        own = {at for at, path in self.checkpoints.own.items() if before.get(path) is None}
        with self.checkpoints.store_path({"steps_completed": step}) as (path, name):
            (path / "state_dict.pth").write_text(f"weights of {self.line} {step}")
        there = {path.name for path in self._folders() if find_fault(path) is None}
        assert name in there, "the checkpoint that was just written"
        saved = [v for v in self.metrics.validations if v["steps"] in {*own, step}]
        if saved and self.pruning.get("save_trial_best", 1):
            sign = -1 if self.searcher["smaller_is_better"] else 1
            best = max(saved, key=lambda v: sign * v[self.searcher["metric"]])
            assert f"step-{best['steps']:08d}" in there, "the best one"
        for path, fault in before.items():  # what is not the run's stays as it is
            assert fault is None or path.exists() or path.name == name

    def _folders(self) -> list[Path]:
        return sorted(self.folder.glob("checkpoints/step-*"))
