"""Numbers that are not finite: a step with such a gradient changes nothing, ten in a row end the
run; weights that have some are neither loaded nor saved.

A GPU is asked for its count only every few steps, so that a step never blocks: a run that diverges
ends up to ten steps late.
"""

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from detalbert.engine.gradients import local_part
from detalbert.errors import Diverged, UserError

LARGEST = 1e18  # of a weight or a logit: float32 holds its square, which norms take, up to 1.8e19
LIMIT = 10  # steps in a row
_LAG = 5  # steps after which a GPU's count is read: its copy has finished, so this does not block
CURE = (
    "lower hyperparameters.base_learning_rate or raise warmup_fraction, and start over; "
    "the last checkpoint is kept"
)


class FiniteSteps:
    """Decides by the gradient norm whether a step counts, identically on every rank; a GPU's norm
    reaches the host some steps later, without blocking.
    """

    def __init__(self, device: torch.device) -> None:
        self.on_cpu = device.type == "cpu"
        self.streak = torch.zeros((), dtype=torch.int32, device=device)  # steps, up to this one
        self.longest = torch.zeros_like(self.streak)
        self._copy = torch.zeros((), dtype=torch.int32)  # of `longest`, on the host
        if not self.on_cpu:
            self._copy = self._copy.pin_memory()
        self._copied: torch.cuda.Event | None = None

    def update(self, norm: Tensor, step: int) -> Tensor | None:
        """Return whether to keep a step, a bool on the device, or None if known to be kept.

        `norm` is of the step's gradient over all ranks, float32 on the device; `step` counts from
        1. Raises Diverged after LIMIT steps in a row without a finite norm.
        """
        # All on the device: the streak is reset by a finite norm.
        finite = norm.isfinite()
        self.streak.add_(1).mul_(~finite)
        torch.maximum(self.longest, self.streak, out=self.longest)
        if self._count(step) >= LIMIT:
            raise Diverged(
                f"no finite gradient in {LIMIT} steps in a row", key=f"step {step}", cure=CURE
            )
        if self.on_cpu and finite:
            return None
        return finite

    def resume(self, streak: int) -> None:
        """Go on after `streak` steps in a row that were not finite."""
        for count in (self.streak, self.longest, self._copy):
            count.fill_(streak)

    def _count(self, step: int) -> int:
        """Return the longest streak in steps, on a GPU as of _LAG steps ago."""
        if self.on_cpu:
            return int(self.longest)
        if step % _LAG:
            return 0
        # The copy that began at the last such step has finished; then start the next one.
        if self._copied is not None:
            self._copied.synchronize()
        longest = int(self._copy)
        self._copy.copy_(self.longest, non_blocking=True)
        self._copied = torch.cuda.Event()
        self._copied.record()
        return longest


def has_finite_weights(model: nn.Module) -> bool:
    """Return whether all weights of this rank are finite; blocks on the device."""
    for parameter in model.parameters():
        shard = local_part(parameter.detach())
        if not _peak(shard) < math.inf:  # NaN is not
            return False
    return True


def is_usable(tensor: Tensor) -> bool:
    """Return whether all numbers of a tensor are finite, and at most LARGEST."""
    return _peak(tensor) <= LARGEST


def check_finite_weights(place: str, weights: Iterable[tuple[str, Tensor]]) -> None:
    """Raise UserError for the first of the named weights, from the file or folder `place`, that is
    not usable.
    """
    for name, weight in weights:
        if not is_usable(local_part(weight.detach())):
            raise UserError(
                f"its weight {name!r} is not finite, or too large for float32",
                key=place,
                cure="give other weights",
            )


def _peak(tensor: Tensor) -> float:
    """Return the largest magnitude in a tensor, NaN if it has one. Makes no copy of the tensor;
    blocks on the device.
    """
    if tensor.numel() == 0 or not tensor.is_floating_point():
        return 0.0
    low, high = torch.aminmax(tensor)  # both NaN if one number is; eight times as fast as isfinite
    return max(-low.item(), high.item())
