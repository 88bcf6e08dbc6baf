"""`hyperparameters.profile_steps`: a table and a trace of some steps of rank 0.

Determined's own `context.set_profiler` makes one trace per step, without the wait for the loader.
A cluster uploads the trace, which is among TensorBoard's files.
"""

import contextlib
import logging
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from determined import pytorch
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from detalbert.errors import UserError

log = logging.getLogger(__name__)
WARM_UP = 3  # steps before it: loaders start, buffers are made
ROWS = 15


class StepProfile(pytorch.PyTorchCallback):
    """Records `steps` steps of the `left` ones, after WARM_UP of them; writes the trace into
    `folder` and logs torch's table.
    """

    mark = record_function  # a context that names what runs inside

    def __init__(self, steps: int, left: int, folder: Path, device: torch.device) -> None:
        self.steps, self.folder, self.device = steps, folder, device
        self.running: profile | None = None
        if steps and left < WARM_UP + steps:
            log.info("no profile: %d steps are left, %d are needed", left, WARM_UP + steps)
        elif steps:
            os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # it would write its stages to stderr
            activities = [ProfilerActivity.CPU]
            activities += [ProfilerActivity.CUDA] if device.type == "cuda" else []
            plan = schedule(wait=WARM_UP - 1, warmup=1, active=steps, repeat=1)
            self.running = profile(
                activities=activities, schedule=plan, on_trace_ready=self._finish
            )

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
        name = f"{socket.gethostname()}_{os.getpid()}.{time.time_ns()}.pt.trace.json"
        path = self.folder / name
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            recorded.export_chrome_trace(str(path))
        except (OSError, RuntimeError) as error:
            fault = f"{path}: cannot write the trace ({error}); free space there, or set it to 0"
            raise UserError(f"hyperparameters.profile_steps: {fault}") from None
        order = f"self_{'device' if self.device.type == 'cuda' else 'cpu'}_time_total"
        table = recorded.key_averages().table(sort_by=order, row_limit=ROWS)
        log.info("profile of %d steps:\n%s\ntrace: %s", self.steps, table, path)
