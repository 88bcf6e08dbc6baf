"""Gradients of one optimizer step and sums of a validation, the same with every layout.

FSDP hangs if its ranks run unequal numbers of forwards. So they first agree on the largest number,
and ranks with fewer rows add dummy rows without targets.
"""

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from detalbert.engine.forward import for_any_sizes, not_compiled
from detalbert.engine.gradients import euclidean_norm, local_part
from detalbert.engine.rows import to_device
from detalbert.errors import as_user_error
from detalbert.progress import waiting
from lm.hparams import Layout
from lm.layout import host_group
from lm.model import CausalLoss
from lm.packed import CausalRow, count_targets, pack


def accumulate(
    causal_loss: CausalLoss,
    rows: Sequence[CausalRow],
    layout: Layout,
    backward: Callable[[Tensor], object] = Tensor.backward,
) -> Tensor:
    """Accumulate the gradient of the mean loss over all targets of the global batch in `.grad`.

    FSDP averages over data ranks, which may have unequal numbers of targets; each loss is scaled so
    that the result is the sum over the ranks divided by the targets of all. Gradients are scattered
    after each row, so that no rank holds them unsharded, and replicas add them up after the last.

    Args:
        causal_loss: the sharded model.
        rows: this data rank's, possibly none, on the CPU.
        layout: of the ranks.
        backward: called with a row's loss; scales it first if products are fp16.

    Returns:
        This data rank's loss sum, correct predictions and targets, float64 [3], on the device.
    """
    rows, global_targets = _add_dummy_rows(rows, layout)
    # FSDP divides by the number of data ranks, the mean over targets by their number.
    scale = layout.data_ranks / max(global_targets, 1)
    device = causal_loss.device
    sums = zero_sums(device)
    for number, row in enumerate(rows):
        # Replicas wait for each other once per step.
        causal_loss.set_requires_all_reduce(number == len(rows) - 1)
        row_loss, correct = causal_loss(to_device(row, device))
        backward(row_loss * scale)
        add_row(sums, row, loss=row_loss.detach(), correct=correct)
    return sums


def compile_layers(causal_loss: CausalLoss, windows: int, length: int, layout: Layout) -> None:
    """Compile the layers for training and validation on dummy rows.

    One has `windows` windows of `length` tokens, the other a window whose documents have a token
    each. So the code depends on the config alone, and a restart has the same.

    Raises:
        UserError: if it fails.
    """
    # The fewest document segments of a row, and the most.
    tokens = torch.zeros(length + 1)
    one_document = torch.tensor([length + 1])
    shortest_documents = torch.ones(length + 1)
    rows = [pack([(tokens, one_document)] * windows), pack([(tokens, shortest_documents)])]
    with waiting("compiling the layers"), as_user_error(not_compiled), for_any_sizes():
        accumulate(causal_loss, rows, layout)
        evaluate(causal_loss, rows, layout)
    causal_loss.zero_grad()


@torch.no_grad()
def evaluate(causal_loss: CausalLoss, rows: Sequence[CausalRow], layout: Layout) -> Tensor:
    """Return loss sum, correct predictions, targets of all data ranks, float64 [3]. Collective."""
    device = causal_loss.device
    sums = zero_sums(device)
    was_training = causal_loss.training
    causal_loss.eval()
    rows, _ = _add_dummy_rows(rows, layout)
    for row in rows:
        row_loss, correct = causal_loss(to_device(row, device))
        add_row(sums, row, loss=row_loss, correct=correct)
    causal_loss.reshard()  # FSDP leaves the root unsharded for a backward, which does not come
    causal_loss.train(was_training)
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
    """Add loss, correct predictions and targets of `row`, which is on the CPU, to `sums`."""
    sums[0] += loss
    sums[1] += correct
    sums[2] += count_targets(row)  # assigning a number would go through the host, and wait


def _add_dummy_rows(rows: Sequence[CausalRow], layout: Layout) -> tuple[list[CausalRow], int]:
    """Add dummy rows up to the largest number of a rank; return all rows, and the targets of all
    data ranks. Collective.
    """
    # Every rank writes its own numbers, and the sum is the numbers of all.
    counts = torch.zeros(dist.get_world_size(), 2, dtype=torch.int64)  # [ranks, (rows, targets)]
    rank = dist.get_rank()
    counts[rank, 0] = len(rows)
    counts[rank, 1] = sum(count_targets(row) for row in rows)
    dist.all_reduce(counts, group=host_group(dist.group.WORLD))
    most_rows = int(counts[:, 0].max())
    # Tensor-parallel ranks have the same rows, so each target was counted `tensor` times.
    global_targets = int(counts[:, 1].sum()) // layout.tensor
    dummy = pack([(torch.zeros(2), torch.ones(2))])  # one token without target, which adds nothing
    padded = list(rows)
    while len(padded) < most_rows:
        padded.append(dummy)
    return padded, global_targets


class ShardedGradients:
    """Sharded gradients, as `StepTrial` uses them."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def zero(self) -> None:
        self.model.zero_grad()

    @torch.no_grad()
    def clip(self, max_norm: float) -> Tensor:
        """Scale gradients to a norm of at most `max_norm` (0: no limit), or zero them if the norm
        is not finite; return the norm before, fp32.

        torch's clip_grad_norm_ cannot combine gradients of different meshes. Here each rank sums
        its squares, divided by the number of ranks that hold the same values: a norm's weight on
        (shard 2, tensor 2) is on 2 of 4 as the same half, so it counts half on each.
        """
        gradients = [
            parameter.grad for parameter in self.model.parameters() if parameter.grad is not None
        ]
        # Each rank sums what it holds; a value on several ranks counts in part on each.
        shards = [local_part(gradient) for gradient in gradients]
        squares = torch.zeros((), device=shards[0].device)
        for gradient, shard in zip(gradients, shards, strict=True):
            squares = squares + _sum_of_squares(shard) / _holders(gradient)
        dist.all_reduce(squares)
        norm = squares.sqrt().float()
        # The factor stays on the device: nothing waits for the norm.
        if max_norm:
            factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
            torch._foreach_mul_(shards, factor)
        for shard in shards:
            shard.masked_fill_(~norm.isfinite(), 0.0)
        return norm


def _sum_of_squares(shard: Tensor) -> Tensor:
    """Return the sum of a shard's squares, a scalar; fp64 on a CPU, fp32 on a GPU."""
    if shard.device.type == "cpu":
        return euclidean_norm(shard.float()).double().square()
    return shard.float().square().sum()


def _holders(gradient: Tensor) -> int:
    """Return the number of ranks that hold the same shard of `gradient`."""
    ranks = dist.get_world_size()
    if not isinstance(gradient, DTensor):
        return ranks
    shards = 1
    for dimension, placement in enumerate(gradient.placements):
        if not placement.is_replicate():
            shards *= gradient.device_mesh.size(dimension)
    return ranks // shards
