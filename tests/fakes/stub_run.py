"""A local run without a model: starts, validations, checkpoints, stops and kills over real files.

What decides which checkpoints are there, find_checkpoint, RunMetrics and LocalCheckpoints, is real.
The scores of a step are a function of the step, as those of training are.
"""

import json
import random
from types import SimpleNamespace

from determined import core

from detalbert.engine.history import History
from detalbert.training.checkpoints import (
    LENGTH,
    LocalCheckpoints,
    check_same_run,
    find_checkpoint,
)
from detalbert.training.manifest import find_fault, read_manifest
from detalbert.training.metrics import RunMetrics

VALIDATION_PERIOD = 3  # steps
CHECKPOINT_PERIOD = 4


class StubRun:
    """Stand-in for a run in `folder`, which is started again and again.

    Args:
        pruning: `checkpoint_storage:`.
    """

    def __init__(self, folder, pruning):
        self.folder = folder
        self.pruning = pruning
        self.length = 40
        self.searcher = {"metric": "f1", "smaller_is_better": False}
        self.done = 0  # steps from which the last start went on

    def start(self, until, stopped):
        """Train until a step, where the run is stopped, with a checkpoint, or killed, without one;
        return that step."""
        self.folder.mkdir(exist_ok=True)
        run = {LENGTH: self.length, "hyperparameters.seed": 1}
        checkpoint = find_checkpoint("auto", self.folder)
        self.done = 0
        if checkpoint is not None:
            check_same_run(checkpoint, run)
            self.done = read_manifest(checkpoint)["steps"]
        self.history = History(self.done)
        if checkpoint is not None:
            self.history.load_state_dict(json.loads((checkpoint / "state_dict.pth").read_text()))
        self.metrics = RunMetrics(self.folder, self.searcher, self.done)
        trial = SimpleNamespace(
            history=self.history,
            slots=1,
            meter=SimpleNamespace(throughput={}),
            validated=lambda: (None, {}),
        )
        self.metrics.trial = trial
        self.metrics.stalls = []
        alone = core.DummyDistributedContext()
        self.checkpoints = LocalCheckpoints(alone, self.metrics, lambda: run, self.pruning)

        last_step = max(self.done, min(until, self.length))
        ends = stopped or last_step == self.length  # a killed run saves nothing at its end
        for step in range(self.done + 1, last_step + 1):
            self._step(step, last=step == last_step and ends)
        if ends:
            self.metrics.finish()
        return last_step

    def _step(self, step, last):
        self.history.step = step
        saved = step % VALIDATION_PERIOD == 0 and self._validate(step)
        if not saved and (step % CHECKPOINT_PERIOD == 0 or last):
            self.save(step)

    def _validate(self, step):
        """Report a validation, and save a checkpoint if it is the best (the policy "best")."""
        dice = random.Random(step)
        scores = {"f1": float(dice.randrange(6)), "loss": float(dice.randrange(6))}
        self.history.record(scores)
        best = self.metrics.get_experiment_best_validation()
        self.metrics.report_validation_metrics(step, scores)
        is_best = best is None or self._rank(scores) > self._rank({self.searcher["metric"]: best})
        if is_best:
            self.save(step)
        return is_best

    def _rank(self, scores):
        """Return the searcher's metric, of opposite sign if smaller is better."""
        sign = -1 if self.searcher["smaller_is_better"] else 1
        return sign * scores[self.searcher["metric"]]

    def save(self, step):
        """Write a checkpoint, and compare what is there afterwards with what has to be."""
        before = {path for path in self.checkpoints.own.values() if find_fault(path) is None}
        with self.checkpoints.store_path({"steps_completed": step}) as (path, name):
            (path / "state_dict.pth").write_text(json.dumps(self.history.state_dict()))

        paths = self.folder.glob("checkpoints/step-*")
        complete = {path.name for path in paths if find_fault(path) is None}
        assert name in complete, "the checkpoint that was just written"
        saved = {path.name for path in before} | {name}
        names = {f"step-{v['steps']:08d}": self._rank(v) for v in self.metrics.validations()}
        ranks = {name: rank for name, rank in names.items() if name in saved}
        if ranks and self.pruning.get("save_trial_best", 1):
            best = max(ranks, key=lambda name: ranks[name])
            assert best in complete, "the best one"
