"""`OptimizerStep`: from accumulated gradients to new weights, the same code for every workload.

A gradient that is not finite must change nothing, but finding that out on the host would block on
the device once per step. So a GPU runs every step to its end, with a flag on the device that turns
weights and moments into themselves. The price is a few more element-wise kernels per step.
"""

from typing import Any, Protocol

import torch
from determined import pytorch
from torch import Tensor

from detalbert.engine.finite import FiniteSteps
from detalbert.engine.optim import ListOptimizer


class Gradients(Protocol):
    """Gradients of all trainable parameters: replicated (FlatGradients) or sharded (lm/)."""

    def zero(self) -> None:
        """Set every gradient to zero."""

    def clip(self, max_norm: float) -> Tensor:
        """Scale to a norm of at most `max_norm` (0: no limit); return the norm before, fp32."""

    def zero_unless(self, keep: Tensor) -> None:
        """Set every gradient to zero, also NaN, if the bool `keep` is False; do not block."""


class OptimizerStep:
    """Clips accumulated gradients and updates the weights, if the gradients are finite.

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
        optimizer: ListOptimizer,
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

        Raises:
            Diverged: too many steps in a row without a finite gradient.
        """
        self.scaler.unscale_(self.optimizer)
        norm = self.gradients.clip(self.max_norm)

        # A step whose gradient is not finite changes nothing; NaN times zero would still be NaN.
        keep = self.finite.update(norm, step)
        self.optimizer.keep_next_step(keep)
        if keep is not None:
            self.gradients.zero_unless(keep)

        self.context.step_optimizer(self.optimizer, auto_zero_grads=False, scaler=self.scaler)
        self.scaler.update()
        return norm
