"""A profile of some steps, by torch's profiler."""

import logging
import os
from pathlib import Path

import torch
from determined import pytorch
from torch.profiler import profile, schedule, tensorboard_trace_handler

log = logging.getLogger(__name__)
UNRECORDED_STEPS = 3  # before those of a profile: loaders start, layers are compiled


class StepProfile(pytorch.PyTorchCallback):
    """Records `steps` steps after UNRECORDED_STEPS by torch's profiler: logs its table of
    operators, and writes its trace into `folder`, TensorBoard's.

    Determined's own `context.set_profiler` makes one trace per step, without the wait for a batch.
    """

    def __init__(self, steps: int, folder: Path) -> None:
        self.steps = steps
        self.folder = folder
        os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # it would write its stages to stderr
        # torch warms its tracer up in the last step before those that count.
        plan = schedule(wait=UNRECORDED_STEPS - 1, warmup=1, active=steps, repeat=1)
        self.profiler = profile(schedule=plan, on_trace_ready=self._write)

    def on_step(self) -> None:
        """Count a step of this start."""
        self.profiler.step()

    def on_trial_shutdown(self) -> None:
        self.profiler.stop()  # and writes what it has, if the run was stopped

    def _write(self, recorded: profile) -> None:
        tensorboard_trace_handler(str(self.folder))(recorded)
        device = "device" if torch.cuda.is_available() else "cpu"
        column = f"self_{device}_time_total"
        table = recorded.key_averages().table(sort_by=column, row_limit=15)
        log.info("profile of %d steps:\n%s\ntrace in %s", self.steps, table, self.folder)
