"""Training on a CPU: faster dropout and GELU, reuse of freed memory, number of threads.

On two cores of an AMD EPYC, torch's dropout, on one thread, is 19 % of a step of a MiniLM; its GELU
spends four fifths of its time in tanh. Memory that glibc's malloc returns at once, and the system
zeroes again, is 10 to 15 % of a forward of the embedded model on 3,500 tokens.
"""

import ctypes
import math
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.nn.functional as F
from loky import cpu_count
from torch import Tensor, nn

if TYPE_CHECKING:
    from determined import core

_NUMBERS = 2**16  # a 16-bit integer's, from -32,768 on
_SLOPE = 2 * math.sqrt(2 / math.pi)
_CUBE = 0.044715
# M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of glibc's malloc.h.
_TRIM = -1
_MMAP = -3


def drop(x: Tensor, rate: float) -> Tensor:
    """Return `x`, on a CPU, with random elements zeroed and the others scaled to keep the mean.

    Four elements share one random number of 64 bits, which takes a quarter of the time of torch's
    own dropout. The rate is rounded to 1/65,536.
    """
    dropped = round(rate * _NUMBERS)
    if dropped in (0, _NUMBERS):
        return F.dropout(x, rate)
    # Four signed numbers of 16 bits from each word, -32,768 to 32,767.
    quarter = -(-x.numel() // 4)
    words = torch.empty(quarter, dtype=torch.int64).random_(-(2**63), None)
    numbers = words.view(torch.int16)[: x.numel()].view(x.shape)
    mask = (numbers >= dropped - _NUMBERS // 2).to(x.dtype)  # 1 for elements that stay
    return x * mask.mul_(_NUMBERS / (_NUMBERS - dropped))


class CpuDropout(nn.Dropout):
    """An nn.Dropout that uses `drop` if `x` is on a CPU."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training and x.device.type == "cpu":
            return drop(x, self.p)
        return super().forward(x)


def _gate(x: Tensor) -> Tensor:
    """Return sigmoid(1.5958 (x + 0.044715 x^3)), the GELU's factor of `x`."""
    gate = x * x
    torch.addcmul(x, gate, x, value=_CUBE, out=gate)
    return gate.mul_(_SLOPE).sigmoid_()


class _Gelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)  # alone, as torch's own does: the gate costs less than its memory
        return _gate(x).mul_(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        """Return grad g (1 + x (1 - g) u'), with u' = 1.5958 (1 + 3 * 0.044715 x^2)."""
        (x,) = ctx.saved_tensors
        gate = _gate(x)
        # In place: x u', then x u' (1 - g), then all of it.
        slope = (x * x).mul_(3 * _CUBE * _SLOPE).add_(_SLOPE).mul_(x)
        slope.addcmul_(slope, gate, value=-1)
        return slope.add_(1).mul_(gate).mul_(grad)


class CpuGelu(nn.Module):
    """The GELU with tanh (Hendrycks 2016, arXiv:1606.08415), for any shape and float type.

    0.5 (1 + tanh(u)) is sigmoid(2 u). For float32 on a CPU it takes half the time of torch's.
    """

    def forward(self, x: Tensor) -> Tensor:
        if x.device.type != "cpu" or x.dtype is not torch.float32:
            return F.gelu(x, approximate="tanh")
        # For inference no function of autograd, which would keep x.
        if torch.is_grad_enabled() and x.requires_grad:
            return _Gelu.apply(x)
        return _gate(x).mul_(x)


def keep_freed_memory() -> None:
    """Make this process keep up to a GiB of memory that tensors free, if its system has mallopt
    (https://man7.org/linux/man-pages/man3/mallopt.3.html).
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_TRIM, 1 << 30)  # bytes
        mallopt(_MMAP, 1 << 28)


def set_threads(
    wanted: int | Literal["auto"], distributed: "core.DistributedContext | None" = None
) -> int:
    """Set and return the number of threads that torch computes with, the same on every rank.

    It affects rounding, as torch splits a sum among threads, so every restart restores it (see
    resume.py).

    Args:
        wanted: "auto": this process's share of the machine's cores, at least 1, the minimum over
            machines. Cores that others keep busy count: give a number beside them.
        distributed: Determined's, on every rank; None: a single process.
    """
    threads = cpu_count() if wanted == "auto" else wanted
    if wanted == "auto" and distributed is not None:
        threads = min(distributed.allgather(max(1, threads // distributed.local_size)))
    torch.set_num_threads(threads)
    return threads
