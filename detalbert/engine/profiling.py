"""`hyperparameters.profile_steps`: a table and a trace of some steps of rank 0.

Determined's own `context.set_profiler` makes one trace per step, without the wait for the loader.
A cluster uploads the trace, which is among TensorBoard's files. The profiled steps are slower, so
they are few, and none of the first ones, which start loaders and compile.
"""

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import torch
from determined import pytorch
from torch.profiler import profile, record_function, schedule, tensorboard_trace_handler

from detalbert.errors import UserError

log = logging.getLogger(__name__)
UNRECORDED_STEPS = 3  # before those of the profile: loaders start, buffers are made
ROWS = 15


class StepProfile(pytorch.PyTorchCallback):
    """Records `steps` steps of the `left` ones, after UNRECORDED_STEPS of them; writes the trace
    into `folder` and logs torch's table.

    Args:
        steps: to record; 0: none.
        left: steps of the run from this start on.
        folder: TensorBoard's.
        device: the model's.
    """

    mark = record_function  # a context that names what runs inside

    def __init__(self, steps: int, left: int, folder: Path, device: torch.device) -> None:
        self.steps = steps
        self.folder = folder
        self.device = device
        self.running: profile | None = None
        if steps and left < UNRECORDED_STEPS + steps:
            log.info("no profile: %d steps are left, %d are needed", left, UNRECORDED_STEPS + steps)
        elif steps:
            os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # it would write its stages to stderr
            # torch warms its tracer up in the last step before those that count.
            plan = schedule(wait=UNRECORDED_STEPS - 1, warmup=1, active=steps, repeat=1)
            self.running = profile(schedule=plan, on_trace_ready=self._finish)

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Enclose every optimizer step."""
        with self.mark("step"):
            yield
        if self.running is not None:
            self.running.step()

    def on_trial_shutdown(self) -> None:
        if self.running is not None:  # the run was stopped
            self.running.on_trace_ready = None
            self.running.stop()

    def _finish(self, recorded: profile) -> None:
        self.running = None
        try:
            tensorboard_trace_handler(str(self.folder))(recorded)
        except (OSError, RuntimeError) as error:
            raise UserError(
                f"{self.folder}: cannot write the trace ({error})",
                key="hyperparameters.profile_steps",
                cure="free space there, or set it to 0",
            ) from None
        path = max(self.folder.glob("*.trace.json"), key=lambda file: file.stat().st_mtime_ns)
        on_a_gpu = self.device.type == "cuda"
        column = "self_device_time_total" if on_a_gpu else "self_cpu_time_total"
        table = recorded.key_averages().table(sort_by=column, row_limit=ROWS)
        log.info("profile of %d steps:\n%s\ntrace: %s", self.steps, table, path)
