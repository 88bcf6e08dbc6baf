"""Trial loops of this package: Determined's, with a schedule, and without code from a checkpoint.

`Trainer.fit` creates Determined's private loop itself, and unpickles what it restores. So its
private methods are overridden, under its names, which tests/test_determined_internals.py compares
with the installed version. What was traded: a change of these names ends all runs, and in return
the loop is not written again.

Local runs and trials on a cluster, their restarts, forks and warm starts all load through `_load`.
`Controller` saves as Determined does: rank 0 writes, and training waits. `ShardedController` writes
from all ranks in the background: training waits for a copy to CPU memory only, at the price of that
memory, and a write error is raised steps later, at the next checkpoint or the end.
"""

import contextlib
import json
import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from determined import pytorch, util

from detalbert.engine import safe_load
from detalbert.engine.determined_internals import core_context
from detalbert.engine.gradients import CURE
from detalbert.engine.loaders import LazyLoader
from detalbert.engine.resume import CALLBACK
from detalbert.engine.safe_load import check_finite_weights
from detalbert.engine.trial import StepTrial
from detalbert.errors import Diverged, UserError, first_line
from detalbert.progress import waiting
from detalbert.sums import Json, load_json
from detalbert.training import display, spot
from detalbert.training.checkpoints import LocalCheckpoints
from detalbert.training.local import Ranks, copy_modules
from detalbert.training.parts import TensorSaver, load_tensors
from detalbert.training.schedule import Schedule, Stops
from detalbert.training.uploads import STATE, GroupCollectives, UploadedParts
from detalbert.training.workload import Training

log = logging.getLogger(__name__)


@dataclass(eq=False)
class _Period(pytorch.Batch):
    """Period of Determined's loop that ends at the steps at which the schedule has it due."""

    loop: "Controller"
    name: str

    def should_stop(self, step_num: int) -> bool:
        return self.name in self.loop.due


class Controller(pytorch._PyTorchTrialController):
    """The trial loop as `Trainer.fit` creates it, on a cluster or locally, and its trial. Schedule
    replaces its periods and its poll for preemption.

    Args:
        training: the experiment, with its data.
        context: of the trial that is created.
        stops: requests to stop, see Schedule.
        checkpoint: from which `run` trains; None: from the start.
        on_cluster: whether the master gets profiles and checkpoints.
    """

    trial: StepTrial[Any, Any]

    def __init__(
        self,
        training: Training,
        context: pytorch.PyTorchTrialContext,
        stops: Stops,
        checkpoint: str | None,
        on_cluster: bool,
    ) -> None:
        config = training.config
        hparams = training.hparams
        trial = training.workload.trial(context, (hparams, training.data))
        if context.distributed.rank == 0:
            display.say_start(trial, checkpoint)
        super().__init__(
            trial_inst=trial,
            context=context,
            test_mode=False,
            max_length=pytorch.Batch(trial.steps),
            reporting_period=_Period(self, "report"),
            validation_period=_Period(self, "validate"),
            checkpoint_period=_Period(self, "checkpoint"),
            smaller_is_better=bool(config["searcher"]["smaller_is_better"]),
            searcher_metric_name=config["searcher"]["metric"],
            steps_completed=context.get_initial_batch(),
            latest_checkpoint=checkpoint,
            local_training=not on_cluster,
            profiling_enabled=on_cluster and bool((config.get("profiling") or {}).get("enabled")),
            global_batch_size=hparams.global_batch_size,
            checkpoint_policy=config.get("checkpoint_policy") or "best",
            step_zero_validation=bool(config.get("perform_initial_validation")),
        )
        self.schedule = Schedule(hparams, distributed=context.distributed, stopping=stops)
        # Called before the first step, after an initial validation.
        self.begin: Callable[[], None] = lambda: None
        self.stalls: list[float] = []  # seconds that training waited for each checkpoint
        if hparams.spot_notice and context.distributed.local_rank == 0:
            self.callbacks["spot"] = spot.SpotWatcher(
                stops.request, on_recommendation=self.schedule.request_checkpoint
            )

    def _steps_until_complete(self, train_unit: pytorch.TrainUnit) -> int:
        return 0 if self.trial.early.reached else super()._steps_until_complete(train_unit)

    def _train(self, length: pytorch.TrainUnit, *args: Any, **kwargs: Any) -> None:
        self.begin()
        super()._train(length, *args, **kwargs)

    def _step_batch(self) -> None:
        """Count a step, and find out what is due after it. Collective."""
        super()._step_batch()
        assert self.state is not None
        self.due = self.schedule.at(self.state.batches_trained)

    def _stop_requested(self) -> None:
        # Determined's own poll asks the master at each step, and knows no signal of this machine.
        if self.schedule.stops():
            raise pytorch._ShouldExit()

    def _validate(self) -> Json:
        # A run that was stopped in its last step has a checkpoint of it without this validation:
        # the loop, which asks for the step of the last one, writes it again.
        assert self.state is not None
        if self.state.batches_trained == self.trial.steps:
            self.state.last_ckpt = -1
        loader: Any = self.validation_loader
        with waiting("validation", total=len(loader), unit="batches") as wait:
            # A loader that also counts its batches, for this validation only.
            wait.iterable = loader
            self.validation_loader = LazyLoader(lambda: wait)
            try:
                return super()._validate()
            finally:
                self.validation_loader = loader

    @property
    def is_complete(self) -> bool:
        """Whether the run's last step is trained and validated, or the run was stopped early."""
        history = self.trial.history
        is_last = history.step == self.trial.steps
        return self.trial.early.reached or (is_last and history.is_validated)

    def _checkpoint(self, already_exiting: bool) -> None:
        began = time.monotonic()
        assert self.state is not None
        # Before the write: a checkpoint of weights that are not finite could not be resumed from.
        step = f"step {self.state.batches_trained}"
        try:
            self.check_weights(step)
        except UserError:
            raise Diverged(
                "a weight is not finite, or too large for float32", key=step, cure=CURE
            ) from None
        self.store(exiting=already_exiting)
        self.stalls.append(time.monotonic() - began)

    def store(self, exiting: bool) -> None:
        """Write a checkpoint of finite weights; `exiting`: the last one of this start."""
        # `_save` takes no other function than this one of the module, which would copy the whole
        # working directory, even into itself. It is replaced while a checkpoint is saved.
        write_user_code = util.write_user_code
        util.write_user_code = lambda path, on_cluster: copy_modules(path)
        try:
            super()._checkpoint(exiting)
        finally:
            util.write_user_code = write_user_code

    def _load(self, folder: Path) -> None:
        with waiting("restoring the checkpoint"):
            self.restore(folder)
            self.check_weights(str(folder))

    def restore(self, folder: Path) -> None:
        """Read a checkpoint, of which the weights are not checked yet."""
        safe_load.check_pickles(folder)
        try:
            super()._load(folder)
        except (RuntimeError, LookupError, ValueError, TypeError, AttributeError) as error:
            # What torch and Determined raise for state of other names, shapes or types.
            raise UserError(
                f"does not fit this model: {first_line(error)}", key=str(folder)
            ) from None

    def check_weights(self, place: str) -> None:
        """Raise UserError on all ranks if a weight of `place` is not usable on any. Collective."""
        ranks = Ranks(self.context.distributed)
        weights = self.trial.model.named_parameters()
        ranks.on_all(check_finite_weights, place, weights)


class ShardedController(Controller):
    """The trial loop of a sharded model: each rank writes and reads its own shards.

    A checkpoint is written in the background: training waits only for a copy to CPU memory. Besides
    the shards (parts.py) there are `state.json`, of the loop, and, written last, the manifest.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        core = core_context(self.context)
        if not self.local_training:
            core.checkpoint = UploadedParts(core.checkpoint)
        self.checkpoints = cast(UploadedParts | LocalCheckpoints, core.checkpoint)
        # A group of its own: what is written beside training must not meet training's messages.
        self._group = dist.new_group(backend="gloo")
        self._tensors = TensorSaver(self._group)
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._writing: Future[None] | None = None

    def run(self) -> None:
        super().run()
        # The last checkpoint may still be on its way to the disk.
        began = time.monotonic()
        self._finish()
        if self.stalls:
            self.stalls[-1] += time.monotonic() - began

    def _step_batch(self) -> None:
        if self._writing is not None and self._writing.done():
            self._finish()
        super()._step_batch()

    def _finish(self) -> None:
        """Wait for the checkpoint that is being written, if any; raise its error."""
        writing = self._writing
        self._writing = None
        if writing is not None:
            writing.result()

    def store(self, exiting: bool) -> None:
        """Start saving a checkpoint from all ranks and write it in the background. Determined's own
        method saves on rank 0 only and blocks.
        """
        self._finish()  # one at a time: both use the same copy in CPU memory
        if self.is_chief:
            self.core_context.train.set_status("checkpointing")

        # Determined's own bookkeeping, and what it says of a checkpoint to the master.
        assert self.state is not None
        steps = self.state.batches_trained
        self.state.last_ckpt = steps
        metadata = {
            "steps_completed": steps,
            "framework": f"torch-{torch.__version__}",
            "format": "torch.distributed.checkpoint",
        }
        with contextlib.ExitStack() as stack:
            stored = self.checkpoints.store_together(metadata, GroupCollectives(self._group))
            path, name = stack.enter_context(stored)
            if self.is_chief:
                self._save_state(path)
            # Training goes on after this copy.
            write_tensors = self._tensors.save(
                path, model=self.trial.model, optimizer=self.trial.optimizer
            )
            store = stack.pop_all()  # ended by `write`, in another thread

        def write() -> None:
            # At the end of the block the checkpoint counts: on a disk it is renamed, on a cluster
            # uploaded and reported.
            with store:
                write_tensors()
                if self.is_chief:
                    copy_modules(path)
            if self.is_chief:
                log.info("checkpoint at step %d: %s", steps, name)

        self._writing = self._writer.submit(write)
        if exiting:
            self._finish()

    def _save_state(self, path: Path) -> None:
        trial = self.trial
        state = {
            "trial": vars(self.state),
            "stepped": bool(trial.optimizer.state),
            "rates": [group["lr"] for group in trial.optimizer.param_groups],
            "schedulers": [trial.schedule.state_dict()],
            "callbacks": {name: callback.state_dict() for name, callback in self.callbacks.items()},
            "scaler": trial.scaler.state_dict(),
        }
        (path / STATE).write_text(json.dumps(state, indent=1))
        for callback in self.callbacks.values():
            callback.on_checkpoint_write_end(str(path))

    def restore(self, folder: Path) -> None:  # not super's: torch reads parts as tensors
        """Load the whole state for a restart; from another trial's checkpoint, only the weights."""
        state = _read_state(folder)
        trial = self.trial
        resumed = state["callbacks"][CALLBACK]
        is_own = trial.resume.is_own(resumed)
        # First what determines the rounding of all that follows, such as the number of threads.
        if is_own:
            trial.resume.restore(resumed)

        # Each rank reads its own shards, whatever the layout that wrote them.
        optimizer = trial.optimizer if is_own and state["stepped"] else None
        load_tensors(folder, model=trial.model, optimizer=optimizer)

        # What is no tensor: learning rates, schedule, scaler, early stopping, position of the loop.
        if is_own:
            for group, rate in zip(trial.optimizer.param_groups, state["rates"], strict=True):
                group["lr"] = rate
            (schedule,) = state["schedulers"]
            trial.schedule.load_state_dict(schedule)
            if state["scaler"]:  # empty but for fp16
                trial.scaler.load_state_dict(state["scaler"])
            trial.early.load_state_dict(state["callbacks"]["early_stopping"])
            trial.history.load_state_dict(state["callbacks"]["history"])
        self._load_state(state["trial"] if is_own else {})


def loop_of(training: Training) -> type[Controller]:
    """Return the class of the workload's trial loop."""
    return ShardedController if training.workload.sharded else Controller


def _read_state(path: Path) -> Json:
    try:
        return load_json(path / STATE)
    except (OSError, ValueError) as error:
        raise UserError(
            f"no checkpoint of a sharded model ({STATE}: {first_line(error)})",
            key=str(path),
            cure="give another",
        ) from None
