"""Determined's trial loop and checkpoints, of which this package overrides private methods.

They have Determined's names here, and are compared with the installed version by
tests/test_determined_internals.py. What was traded: a change of these names ends all runs, and in
return `Trainer.fit`, which keeps its loop to itself, is not written again.
"""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

from determined import core, pytorch, util

from detalbert.sums import Json


def core_context(context: pytorch.PyTorchTrialContext) -> core.Context:
    """Return the Core API's context, which `pytorch.init` does not return."""
    return context._core


def set_step(context: pytorch.PyTorchTrialContext, step: int) -> None:
    """Set the current step, which the trial loop counts, for optimizer steps without a loop."""
    context._current_batch_idx = step


class _Period(pytorch.Batch):
    """Period of Determined's loop that ends at the steps at which the schedule has it due."""

    def __init__(self, loop: "TrialLoop", name: str) -> None:
        super().__init__([])
        self.loop = loop
        self.name = name

    def should_stop(self, step_num: int) -> bool:
        return self.name in self.loop.due


class TrialLoop(pytorch._PyTorchTrialController):
    """Determined's trial loop, of which subclasses override the private methods, too.

    `Trainer.fit` creates the private class itself, and unpickles what it restores. `schedule`
    (schedule.Schedule) replaces the periods of the loop and its poll for preemption; the other
    arguments are those of Determined's class.
    """

    def __init__(self, schedule: Any, **arguments: Any) -> None:
        super().__init__(
            test_mode=False,
            reporting_period=_Period(self, "report"),
            validation_period=_Period(self, "validate"),
            checkpoint_period=_Period(self, "checkpoint"),
            **arguments,
        )
        self.schedule = schedule
        # Called before the first step, after an initial validation.
        self.begin: Callable[[], None] = lambda: None

    def copy_code(self, path: Path) -> None:
        """Save the code by which a checkpoint's trial can be loaded, below the folder `path`."""
        raise NotImplementedError

    def _step_batch(self) -> None:
        """Count a step, and find out what is due after it. Collective."""
        super()._step_batch()
        assert self.state is not None
        self.due = self.schedule.at(self.state.batches_trained)

    def _checkpoint(self, already_exiting: bool) -> None:
        # `_save` takes no other function than this one of the module, which would copy the whole
        # working directory, even into itself. It is replaced while a checkpoint is saved.
        write_user_code = util.write_user_code
        util.write_user_code = lambda path, on_cluster: self.copy_code(path)
        try:
            super()._checkpoint(already_exiting)
        finally:
            util.write_user_code = write_user_code

    def _stop_requested(self) -> None:
        # Determined's own poll asks the master at each step, and knows no signal of this machine.
        if self.schedule.stops():
            raise pytorch._ShouldExit()

    def _train(self, length: pytorch.TrainUnit, *args: Any, **kwargs: Any) -> None:
        self.begin()
        super()._train(length, *args, **kwargs)


class CheckpointContext(core.CheckpointContext):
    """Determined's checkpoint context with public names; replaces `theirs` and has its state."""

    def __init__(self, theirs: core.CheckpointContext) -> None:
        vars(self).update(vars(theirs))
        self.storage = theirs._storage_manager
        self.distributed = theirs._dist

    def upload_as(self, name: str, folder: Path, metadata: Json, peers: Any) -> None:
        """Upload each rank's `folder` into checkpoint `name`. Collective over `peers`, which
        replaces Determined's distributed context. `upload(shard=True)` would choose the name.
        """
        uploading = copy.copy(self)
        uploading._dist = peers
        uploading._upload_sharded(str(folder), name, metadata, selector=lambda path: True)
