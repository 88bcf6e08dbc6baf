"""Gradients of one optimizer step and sums of a validation, the same with every layout.

FSDP hangs if its ranks run unequal numbers of forwards. So they first agree on the largest number,
and ranks with fewer rows add dummy rows without targets.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from detalbert.engine.forward import for_any_sizes, not_compiled
from detalbert.engine.gradients import euclidean_norm, local_part
from detalbert.engine.rows import to_device
from detalbert.errors import as_user_error
from detalbert.waiting import waiting
from lm.hparams import Layout
from lm.layout import host_group
from lm.packed import CausalRow, count_targets, pack


def accumulate(
    model: Any,
    rows: Sequence[CausalRow],
    layout: Layout,
    backward: Callable[[Tensor], Any] = Tensor.backward,
) -> Tensor:
    """Accumulate the gradient of the mean loss over all targets of the global batch in `.grad`.

    FSDP averages over data ranks, which may have unequal numbers of targets; each loss is scaled so
    that the result is the sum over the ranks divided by the targets of all. Gradients are scattered
    after each row, so that no rank holds them unsharded, and replicas add them up after the last.

    `rows` are this data rank's, possibly none, on the CPU; `backward` is called with a row's loss,
    and scales it first if products are fp16. Returns this data rank's loss sum, correct predictions
    and targets, float64 [3], on the device.
    """
    rows, targets = _pad(rows, layout)
    sums = zero_sums(device := model.device)
    for i, row in enumerate(rows):
        model.set_requires_all_reduce(i == len(rows) - 1)
        loss, correct = model(to_device(row, device))
        backward(loss * (layout.data_ranks / max(targets, 1)))
        add_row(sums, row, loss.detach(), correct)
    return sums


def compile_layers(model: Any, windows: int, length: int, layout: Layout) -> None:
    """Compile `model` for training and validation on dummy rows: `windows` windows of `length`
    tokens, and one whose documents have a token each. So the code depends on the config alone, and
    a restart has the same. Raises UserError if it fails.
    """
    tokens, whole = torch.zeros(length + 1), torch.tensor([length + 1])
    rows = [pack([(tokens, whole)] * windows), pack([(tokens, torch.ones(length + 1))])]
    with waiting("compiling the layers"), as_user_error(not_compiled), for_any_sizes():
        accumulate(model, rows, layout)
        evaluate(model, rows, layout)
    model.zero_grad()


@torch.no_grad()
def evaluate(model: Any, rows: Sequence[CausalRow], layout: Layout) -> Tensor:
    """Return loss sum, correct predictions, targets of all data ranks, float64 [3]. Collective."""
    sums = zero_sums(device := model.device)
    was_training = model.training
    model.eval()
    for row in _pad(rows, layout)[0]:
        add_row(sums, row, *model(to_device(row, device)))
    model.reshard()  # FSDP leaves the root whole for a backward, which does not come
    model.train(was_training)
    return add_up(sums, layout)


def add_up(sums: Tensor, layout: Layout) -> Tensor:
    """Return the sum over data ranks, each tensor-parallel group once. Collective."""
    total = sums.clone()
    dist.all_reduce(total)
    return total / layout.tensor


def zero_sums(device: torch.device) -> Tensor:
    """Return loss sum, correct predictions and targets of no rows yet, float64 [3]."""
    return torch.zeros(3, dtype=torch.float64, device=device)


def add_row(sums: Tensor, row: CausalRow, loss: Tensor, correct: Tensor) -> None:
    """Add those of a row, which is on the CPU."""
    sums[0] += loss
    sums[1] += correct
    sums[2] += count_targets(row)  # assigning a number would go through the host, and wait


def _pad(rows: Sequence[CausalRow], layout: Layout) -> tuple[list[CausalRow], int]:
    """Add dummy rows up to the largest number of a rank; return all rows, and the targets of all
    data ranks. Collective.
    """
    ranks = torch.zeros(dist.get_world_size(), 2, dtype=torch.int64)
    ranks[dist.get_rank()] = torch.tensor([len(rows), sum(map(count_targets, rows))])
    dist.all_reduce(ranks, group=host_group(dist.group.WORLD))
    missing = int(ranks[:, 0].max()) - len(rows)
    empty = pack([(torch.zeros(2), torch.ones(2))])  # one token without target, which adds nothing
    return [*rows, *[empty] * missing], int(ranks[:, 1].sum()) // layout.tensor


class ShardedGradients:
    """Sharded gradients, as `StepTrial` uses them."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def zero(self) -> None:
        self.model.zero_grad()

    @torch.no_grad()
    def clip(self, max_norm: float) -> Tensor:
        """Scale gradients to a norm of at most `max_norm` (0: no limit); return the norm before,
        fp32.

        torch's clip_grad_norm_ cannot combine gradients of different meshes. Here each rank sums
        its squares, divided by the number of ranks that hold the same values: a norm's weight on
        (shard 2, tensor 2) is on 2 of 4 as the same half, so it counts half on each.
        """
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        local = [local_part(gradient) for gradient in gradients]
        squares = torch.zeros((), device=local[0].device)
        for gradient, part in zip(gradients, local, strict=True):
            squares = squares + _sum_of_squares(part) / _holders(gradient)
        dist.all_reduce(squares)
        norm = squares.sqrt().float()
        if max_norm:
            torch._foreach_mul_(local, (max_norm / (norm + 1e-6)).clamp(max=1.0))
        return norm

    def zero_unless(self, keep: Tensor) -> None:
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                local_part(parameter.grad).masked_fill_(~keep, 0.0)


def _sum_of_squares(part: Tensor) -> Tensor:
    """Return the sum of a shard's squares, a scalar; fp64 on a CPU, fp32 on a GPU."""
    if part.device.type == "cpu":
        return euclidean_norm(part.float()).double().square()
    return part.float().square().sum()


def _holders(gradient: Any) -> int:
    """Return the number of ranks that hold the same shard of `gradient`."""
    world = dist.get_world_size()
    if not isinstance(gradient, DTensor):
        return world
    mesh = gradient.device_mesh
    split = (mesh.size(i) for i, p in enumerate(gradient.placements) if not p.is_replicate())
    return world // torch.Size(split).numel()
