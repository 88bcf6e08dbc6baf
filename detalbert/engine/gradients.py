"""Gradients of a step: one buffer for all of a model, which is zeroed, all-reduced and clipped as
one tensor; and a count of those that are not finite.

The price of the buffer is that no `.grad` may be replaced.

DistributedDataParallel's buckets gain nothing, for ALBERT's gradients are ready only when backward
is over, and their layout changes after the first step, so that a sum over three or more ranks is
rounded in another order after a restart.

A gradient that is not finite is zeroed on the device: the step is one of momentum alone. To look at
each step for it would block; so ten in a row end the run at the next report, some steps late.
"""

import math
from collections.abc import Iterable
from typing import Any, Protocol

import torch
import torch.distributed as dist
from determined import pytorch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from detalbert.errors import Diverged

_ALIGNMENT = 32  # elements: 128 bytes, so that vector loads stay aligned in every view
_CHUNK = 2048  # squares that a CPU adds up in fp32: an error of at most 8e-6 of their root
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


class FlatGradients:
    """Makes every `.grad` a view of one float32 buffer, and broadcasts rank 0's parameters.

    No `.grad` may be set to None: zero with `zero()`, not with the optimizer.

    Args:
        parameters: float32, on one device, each once.
        slots: ranks of torch.distributed's default group; 1 for none.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], slots: int) -> None:
        self.parameters = list(parameters)
        self.slots = slots
        sizes = []
        for parameter in self.parameters:
            blocks = math.ceil(parameter.numel() / _ALIGNMENT)
            sizes.append(blocks * _ALIGNMENT)
        device = self.parameters[0].device
        self.flat = torch.zeros(sum(sizes), dtype=torch.float32, device=device)
        # Each view is aligned, so it may be followed by some elements of padding, which stay zero.
        for parameter, view in zip(self.parameters, self.flat.split(sizes), strict=True):
            parameter.grad = view[: parameter.numel()].view_as(parameter)
            if slots > 1:
                dist.broadcast(parameter.data, src=0)

    def zero(self) -> None:
        self.flat.zero_()

    def average(self) -> None:
        """Average the gradients over all ranks, bitwise identically. Collective; once per step."""
        if self.slots > 1:
            dist.all_reduce(self.flat)
            self.flat.div_(self.slots)

    def clip(self, max_norm: float) -> Tensor:
        """Scale to a Euclidean norm of at most `max_norm` (0: no limit), or zero all if the norm is
        not finite; return the norm before. Does not block on the device.
        """
        # The padding between the views is zero, and adds nothing.
        norm = euclidean_norm(self.flat)
        if max_norm:
            self.flat.mul_((max_norm / (norm + 1e-6)).clamp(max=1.0))
        self.flat.masked_fill_(~norm.isfinite(), 0.0)
        return norm


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


def euclidean_norm(values: Tensor) -> Tensor:
    """Return the Euclidean norm of fp32 `values` of any shape, a scalar, fp32.

    On a CPU torch adds up all squares in fp32, one after another. Of 109 M random numbers the later
    squares are so small beside the sum that the norm comes out 1.2 % too small. Here fp32 sums have
    at most `_CHUNK` squares, and the norms of the chunks are combined in fp64. A chunk is never
    split among threads, so the bits are the same for any number of threads. A GPU adds in a tree.
    """
    if values.device.type != "cpu":
        return torch.linalg.vector_norm(values)
    norms = values.flatten()
    while len(norms) > _CHUNK:
        number = len(norms) // _CHUNK
        complete = number * _CHUNK
        chunks = norms[:complete].view(-1, _CHUNK)
        remainder = norms[complete:]
        # fp32 [chunks + 1] the first time, then fp64
        chunk_norms = torch.linalg.vector_norm(chunks, dim=1)
        last_norm = torch.linalg.vector_norm(remainder, dim=0, keepdim=True)
        norms = torch.cat((chunk_norms, last_norm)).double()
    return torch.linalg.vector_norm(norms).float()


def euclidean_norms(tensors: list[Tensor]) -> Tensor:
    """Return `euclidean_norm` of each fp32 tensor, [tensors]; on a GPU with one kernel for many."""
    if tensors[0].device.type == "cpu":
        return torch.stack([euclidean_norm(tensor) for tensor in tensors])
    return torch.stack(torch._foreach_norm(tensors))


def local_part(tensor: Tensor) -> Tensor:
    """Return this rank's shard of a tensor that may be sharded over ranks."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
