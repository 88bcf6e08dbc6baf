"""Parts of an optimizer step (`StepTrial.train_batch`): its random numbers, what it asks of
gradients, a count of those that are not finite, and a profile of some steps.

Random numbers are of (seed, step, rank) only, so no state of a generator has to be saved.
A gradient that is not finite is zeroed on the device: the step is one of momentum alone. To look at
each step for it would block; so ten in a row end the run at the next report, some steps late.
"""

import hashlib
import logging
import os
from pathlib import Path
from typing import Any, Protocol

import torch
from determined import pytorch
from torch import Tensor
from torch.profiler import profile, schedule, tensorboard_trace_handler

from detalbert.errors import Diverged

log = logging.getLogger(__name__)
LIMIT = 10  # steps in a row
UNRECORDED_STEPS = 3  # before those of a profile: loaders start, layers are compiled
CURE = (
    "lower hyperparameters.base_learning_rate or raise warmup_fraction, and start over; "
    "the last checkpoint is kept"
)


class Gradients(Protocol):
    """Gradients of all trainable parameters: replicated (FlatGradients) or sharded (lm/)."""

    def zero(self) -> None:
        """Set every gradient to zero."""

    def clip(self, max_norm: float) -> Tensor:
        """Scale to a norm of at most `max_norm` (0: no limit), or to zero if the norm is not
        finite; return the norm before, fp32, the same on every rank. Does not block.
        """


def seed_step(seed: int, step: int, rank: int) -> None:
    """Seed torch so that all random draws of this optimizer step depend on (seed, step, rank) only.

    Determined starts all ranks with one seed, so they would draw the same dropout masks, and its
    checkpoints hold only rank 0's generator state.
    """
    digest = hashlib.blake2b(f"{seed}/{step}/{rank}".encode(), digest_size=8).digest()
    torch.manual_seed(int.from_bytes(digest, "little"))


class FiniteSteps(pytorch.PyTorchCallback):
    """Counts steps in a row without a finite gradient, on the device; a report reads the count."""

    def __init__(self, device: torch.device) -> None:
        self.streak = torch.zeros((), dtype=torch.int32, device=device)  # steps, up to this one
        self.longest = torch.zeros_like(self.streak)
        self.step = 0

    def update(self, norm: Tensor, step: int) -> None:
        """Count step number `step`, given the norm of its gradient over all ranks."""
        self.step = step
        self.streak.add_(1).mul_(~norm.isfinite())
        torch.maximum(self.longest, self.streak, out=self.longest)

    def resume(self, streak: int) -> None:
        """Resume after `streak` steps in a row that were not finite."""
        self.streak.fill_(streak)
        self.longest.fill_(streak)

    def on_training_workload_end(self, avg_metrics: dict[str, Any], batch_metrics: Any) -> None:
        """Raise Diverged after LIMIT steps in a row without a finite gradient."""
        if int(self.longest) >= LIMIT:
            raise Diverged(
                f"no finite gradient in {LIMIT} steps in a row", key=f"step {self.step}", cure=CURE
            )


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
