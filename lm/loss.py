"""Loss over the vocabulary head, in chunks of tokens, so that not all logits exist at once.

A chunk's logits give its loss and gradients at once, and are freed: for 16,384 tokens and 50,304 of
the vocabulary they are 3.3 GB. Each tensor-parallel rank holds a shard of the vocabulary, and only
sums over it are communicated (Shoeybi 2019, arXiv:1909.08053).
"""

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from detalbert.engine.precision import weight_gradient
from lm.packed import NO_TARGET

CHUNK = 1024  # tokens


def head_loss(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    first: int = 0,
    group: dist.ProcessGroup | None = None,
    chunk: int = CHUNK,
) -> tuple[Tensor, Tensor]:
    """Return cross-entropy summed over the targets, and how many are predicted correctly.

    Both are scalars, fp32 and int64, the same on all of `group`; the first has gradients.

    Args:
        hidden: [T, h], fp32 or half; softmax and sums are fp32.
        weight: [V, h], or with `group` this rank's rows of it.
        targets: int64 [T], ids in the whole vocabulary or NO_TARGET.
        first: token of the first row of `weight`.
        group: ranks that hold the other rows; they pass the same hidden and targets.
        chunk: tokens whose logits exist at a time.
    """
    return _HeadLoss.apply(hidden, weight, targets, first, group, chunk, torch.is_grad_enabled())


class _HeadLoss(torch.autograd.Function):
    """Computes gradients in forward, while the logits exist; backward only scales them."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        first: int,
        group: dist.ProcessGroup | None,
        chunk: int,
        train: bool,
    ) -> tuple[Tensor, Tensor]:
        loss = torch.zeros((), dtype=torch.float32, device=hidden.device)
        correct = torch.zeros((), dtype=torch.int64, device=hidden.device)
        d_hidden = []
        d_weight = torch.zeros_like(weight, dtype=torch.float32) if train else None
        for x, x_targets in zip(hidden.split(chunk), targets.split(chunk), strict=True):
            logits = (x @ weight.t()).float()  # [c, V]
            columns = x_targets - first  # of the targets in `logits`; out of range on another rank
            has_target = x_targets != NO_TARGET
            softmax = _softmax_parts(logits, columns, first=first, group=group)
            loss += (softmax.losses * has_target).sum()
            correct += ((softmax.likeliest == x_targets) & has_target).sum()
            # Gradients now, while the logits are here: backward would have to compute them again.
            if d_weight is not None:
                d_logits = _d_logits(softmax, columns, has_target).to(x.dtype)
                d_hidden.append(d_logits @ weight)
                d_weight += weight_gradient(d_logits, x)
        if train:
            ctx.d_hidden = _sum(torch.cat(d_hidden), group)
            ctx.d_weight = d_weight
        ctx.mark_non_differentiable(correct)
        return loss, correct

    @staticmethod
    def backward(ctx: Any, d_loss: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        d_hidden = (ctx.d_hidden * d_loss).to(ctx.d_hidden.dtype)
        return d_hidden, ctx.d_weight * d_loss, None, None, None, None, None


class _Softmax(NamedTuple):
    """Parts of the softmax of a chunk of logits [c, V], over the whole vocabulary."""

    exps: Tensor  # [c, V]: exp of the logits minus their maximum
    sums: Tensor  # [c]: of the exps of all ranks
    losses: Tensor  # [c]: cross-entropy of the targets
    likeliest: Tensor  # int64 [c]: ids


def _softmax_parts(
    logits: Tensor, columns: Tensor, first: int, group: dist.ProcessGroup | None
) -> _Softmax:
    """Return the softmax's parts; overwrites `logits`. `columns` are those of the targets, out of
    range if on another rank; column 0 is token `first`.
    """
    peak, peak_column = logits.max(dim=1)
    highest = peak
    likeliest = peak_column + first
    vocabulary = logits.shape[1]
    in_range = (columns >= 0) & (columns < vocabulary)
    clamped = columns.clamp(0, vocabulary - 1)
    target_logits = logits.gather(1, clamped[:, None])[:, 0] * in_range

    # The maximum of all ranks; of ranks that have it, the one with the lowest id counts.
    if group is not None:
        highest = peak.clone()
        dist.all_reduce(highest, dist.ReduceOp.MAX, group)
        likeliest = torch.where(peak == highest, likeliest, torch.iinfo(likeliest.dtype).max)
        dist.all_reduce(likeliest, dist.ReduceOp.MIN, group)

    # Each target's logit is on one rank, so both are sums over the ranks.
    exps = logits.sub_(highest[:, None]).exp_()
    sums, target_logits = _sum(torch.stack([exps.sum(dim=1), target_logits]), group)
    losses = highest + sums.log() - target_logits
    return _Softmax(exps=exps, sums=sums, losses=losses, likeliest=likeliest)


def _d_logits(softmax: _Softmax, columns: Tensor, has_target: Tensor) -> Tensor:
    """Return softmax - one-hot of the target, zero without a target; overwrites its `exps`."""
    vocabulary = softmax.exps.shape[1]
    in_range = (columns >= 0) & (columns < vocabulary) & has_target
    d_logits = softmax.exps.mul_((has_target / softmax.sums)[:, None])
    # The one-hot part is subtracted in place: [c, V] more would not fit.
    rows = torch.arange(len(d_logits), device=d_logits.device)
    d_logits[rows, columns.clamp(0, vocabulary - 1)] -= in_range.float()
    return d_logits


def _sum(x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """Sum `x` over the ranks of `group`, in place."""
    if group is not None:
        dist.all_reduce(x, group=group)
    return x
