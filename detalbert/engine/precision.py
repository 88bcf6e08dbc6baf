"""Linear layers in half precision whose weights are cast once per step.

Under autocast the gradients of all uses of a weight (12 of ALBERT's one layer) are summed in half
precision. Here all uses read a copy of the float32 weight, and accumulate gradients in float32. The
price is that copy, and a call of `refresh` after every change of the weights.
"""

import itertools
from typing import Any, cast

import torch
from torch import Tensor, nn


class _Product(torch.autograd.Function):
    """Product of x [T, in] and the transposed copy [out, in] of `weight`, plus bias: [T, out]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, copy: Tensor) -> Tensor:
        # The float32 weight is an argument for its gradient alone; autograd sees no cast of it.
        x = x.to(copy.dtype)
        half_bias = bias.to(copy.dtype)
        ctx.save_for_backward(x, copy)
        return torch.addmm(half_bias, x, copy.t())

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        # Gradients of the weight and the bias are summed over tokens in float32.
        x, copy = ctx.saved_tensors
        dy = dy.to(copy.dtype)
        dx = dy @ copy
        dweight = weight_gradient(dy, x)
        dbias = dy.sum(0, dtype=torch.float32)
        return dx, dweight, dbias, None


def weight_gradient(dy: Tensor, x: Tensor) -> Tensor:
    """Return dy^T x in float32 [out, in] from half-precision dy [T, out] and x [T, in]."""
    if not dy.is_cuda:
        # On a CPU torch has no product of half-precision matrices with a float32 result.
        return dy.t().float() @ x.float()
    return torch.mm(dy.t(), x, out_dtype=torch.float32)


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
        shape = (*x.shape[:-1], self.out_features)
        return y.view(shape)


def convert_layers(layers: list[nn.Module], half: torch.dtype) -> list[StepLinear]:
    """Convert every nn.Linear with a bias inside `layers` to a StepLinear, in place; return each
    once. Call `refresh` on each before the first forward after a change of weights.
    """
    converted: list[StepLinear] = []
    modules = itertools.chain.from_iterable(layer.modules() for layer in layers)
    for module in modules:
        if type(module) is nn.Linear and module.bias is not None:
            module.__class__ = StepLinear
            linear = cast(StepLinear, module)
            linear.register_buffer("copy", linear.weight.to(half), persistent=False)
            converted.append(linear)
    return converted
