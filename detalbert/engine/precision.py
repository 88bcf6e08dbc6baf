"""Linear layers in half precision whose weights are cast once per step.

Under autocast the gradients of all uses of a weight (12 of ALBERT's one layer) are summed in half
precision. Here all uses read a copy of the float32 weight, and accumulate gradients in float32.
"""

from typing import Any

import torch
from torch import Tensor, nn

from detalbert.errors import UserError


class _Product(torch.autograd.Function):
    """Product of x [T, in] and the transposed copy [out, in] of `weight`, plus bias: [T, out]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, copy: Tensor) -> Tensor:
        x = x.to(copy.dtype)
        ctx.save_for_backward(x, copy)
        return torch.addmm(bias.to(copy.dtype), x, copy.t())

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        x, copy = ctx.saved_tensors
        dy = dy.to(copy.dtype)
        return dy @ copy, weight_gradient(dy, x), dy.sum(0, dtype=torch.float32), None


def weight_gradient(dy: Tensor, x: Tensor) -> Tensor:
    """Return dy^T x in float32 [out, in] from half-precision dy [T, out] and x [T, in]."""
    if not dy.is_cuda:
        return dy.t().float() @ x.float()
    if hasattr(torch.ops.aten.mm, "dtype"):  # torch 2.8
        return torch.mm(dy.t(), x, out_dtype=torch.float32)
    return (dy.t() @ x).float()


class StepLinear(nn.Linear):
    """An nn.Linear that computes with a half-precision copy of its weight; see `refresh`."""

    copy: Tensor
    version = -1

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy the weight again if it has changed since the last copy."""
        if self.version != self.weight._version:
            self.copy.copy_(self.weight)
            self.version = self.weight._version

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, self.in_features)  # [T, in]
        y = _Product.apply(flat, self.weight, self.bias, self.copy)
        return y.view(*x.shape[:-1], self.out_features)


def convert_layers(layers: list[nn.Module], half: torch.dtype) -> list[StepLinear]:
    """Convert every nn.Linear with a bias inside `layers` to a StepLinear, in place; return each
    once. Call `refresh` on each before the first forward after a change of weights.
    """
    taken: list[Any] = []
    for layer in layers:
        for module in layer.modules():
            if type(module) is nn.Linear and module.bias is not None:
                module.__class__ = StepLinear
                module.register_buffer("copy", module.weight.to(half), persistent=False)
                taken.append(module)
    return taken


def resolve_precision(precision: str, device: torch.device) -> torch.dtype:
    """Return the dtype to compute in. Raises UserError if the device does not support it. "auto" is
    bf16 on Ampere and newer, fp16 on older NVIDIA GPUs and fp32 on a CPU.
    """
    cuda = device.type == "cuda"
    capability = torch.cuda.get_device_capability(device) if cuda else (0, 0)
    key = "hyperparameters.precision"
    if precision == "fp16" and not cuda:
        raise UserError(f"{key}: fp16 needs a GPU; use auto, bf16 or fp32")
    if precision == "bf16" and cuda and capability < (8, 0):
        raise UserError(f"{key}: this GPU has no bf16; use auto or fp16")
    if precision == "auto":
        precision = "fp32" if not cuda else "bf16" if capability >= (8, 0) else "fp16"
    return {"fp16": torch.float16, "fp32": torch.float32}.get(precision, torch.bfloat16)
