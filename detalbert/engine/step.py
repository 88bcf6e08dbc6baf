"""`OptimizerStep`: from accumulated gradients to new weights, the same code for every workload.

A gradient that is not finite is zeroed on the device: the step is one of momentum alone. To look at
each step for it would block; so ten in a row end the run at the next report, some steps late.
"""

from typing import Any, Protocol

import torch
from determined import pytorch
from torch import Tensor
from torch.optim import Optimizer

from detalbert.errors import Diverged

LIMIT = 10  # steps in a row
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


class OptimizerStep:
    """Clips accumulated gradients and updates the weights.

    Args:
        context: runs the optimizer, and after it the schedule of the learning rate.
        gradients: of all parameters of `optimizer`.
        optimizer: wrapped by the context.
        scaler: of the loss, wrapped by the context; enabled for fp16 only.
        finite: counts the steps without finite gradients.
        max_norm: of the gradient; 0: no limit.
    """

    def __init__(
        self,
        context: pytorch.PyTorchTrialContext,
        *,
        gradients: Gradients,
        optimizer: Optimizer,
        scaler: torch.amp.GradScaler,
        finite: FiniteSteps,
        max_norm: float,
    ) -> None:
        self.context = context
        self.gradients = gradients
        self.optimizer = optimizer
        self.scaler: Any = scaler  # Determined's annotation is a class that torch has renamed
        self.finite = finite
        self.max_norm = max_norm

    def run(self, step: int) -> Tensor:
        """Make optimizer step number `step`, from 1.

        Returns:
            The gradient's norm over all ranks before clipping, a scalar, fp32, on the device.
        """
        self.scaler.unscale_(self.optimizer)
        norm = self.gradients.clip(self.max_norm)
        self.finite.update(norm, step)
        self.context.step_optimizer(self.optimizer, auto_zero_grads=False, scaler=self.scaler)
        self.scaler.update()
        return norm
