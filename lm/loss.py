"""Loss over the vocabulary head, in chunks of tokens, so that not all logits exist at once.

A chunk's logits give its loss and gradients at once, and are freed: for 16,384 tokens and 50,304 of
the vocabulary they are 3.3 GB. Each tensor-parallel rank holds a shard of the vocabulary, and only
sums over it are communicated (Shoeybi 2019, arXiv:1909.08053).
"""

from typing import Any

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
        weight: [V, h], or with `group` this rank's rows of it, the first being token `first`.
        targets: int64 [T], ids in the whole vocabulary or NO_TARGET.
        group: ranks that hold the other rows; they pass the same hidden and targets.
        chunk: tokens whose logits exist at a time.
    """
    return _HeadLoss.apply(hidden, weight, targets, first, group, chunk, torch.is_grad_enabled())


class _HeadLoss(torch.autograd.Function):
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
        d_hidden, d_weight = [], torch.zeros_like(weight, dtype=torch.float32) if train else None
        for x, wanted in zip(hidden.split(chunk), targets.split(chunk), strict=True):
            logits = (x @ weight.t()).float()  # [c, V]
            own = wanted - first
            counts = wanted != NO_TARGET
            exps, sums, losses, best = _over_vocabulary(logits, own, first, group)
            loss += (losses * counts).sum()
            correct += ((best == wanted) & counts).sum()
            if d_weight is not None:
                dy = _d_logits(exps, sums, own, counts).to(x.dtype)
                d_hidden.append(dy @ weight)
                d_weight += weight_gradient(dy, x)
        if train:
            ctx.d_hidden, ctx.d_weight = _sum(torch.cat(d_hidden), group), d_weight
        ctx.mark_non_differentiable(correct)
        return loss, correct

    @staticmethod
    def backward(ctx: Any, d_loss: Tensor, _: Tensor) -> tuple[Any, ...]:
        d_hidden = (ctx.d_hidden * d_loss).to(ctx.d_hidden.dtype)
        return d_hidden, ctx.d_weight * d_loss, None, None, None, None, None


def _over_vocabulary(
    logits: Tensor, own: Tensor, first: int, group: dist.ProcessGroup | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return exps [c, V] of `logits` (overwritten) minus the maximum of all tensor-parallel ranks,
    their sum over the vocabulary, the loss and the likeliest id, each [c]. `own` are the targets as
    columns, out of range if on another rank.
    """
    peak, place = logits.max(dim=1)
    best, highest = place + first, peak
    here = (own >= 0) & (own < logits.shape[1])
    right = logits.gather(1, own.clamp(0, logits.shape[1] - 1)[:, None])[:, 0] * here
    if group is not None:
        highest = peak.clone()
        dist.all_reduce(highest, dist.ReduceOp.MAX, group)
        best = torch.where(peak == highest, best, torch.iinfo(best.dtype).max)
        dist.all_reduce(best, dist.ReduceOp.MIN, group)
    exps = logits.sub_(highest[:, None]).exp_()
    both = _sum(torch.stack([exps.sum(dim=1), right]), group)
    return exps, both[0], highest + both[0].log() - both[1], best


def _d_logits(exps: Tensor, sums: Tensor, own: Tensor, counts: Tensor) -> Tensor:
    """Return softmax - one-hot of the target, zero without a target; overwrites `exps` [c, V]."""
    here = (own >= 0) & (own < exps.shape[1]) & counts
    dy = exps.mul_((counts / sums)[:, None])
    token = torch.arange(len(dy), device=dy.device)
    dy[token, own.clamp(0, exps.shape[1] - 1)] -= here.float()
    return dy


def _sum(x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    if group is not None:
        dist.all_reduce(x, group=group)
    return x
