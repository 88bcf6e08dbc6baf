"""Linear layers in half precision (or fp8) whose weights are cast once a step.

Under autocast a weight is cast at its first use of a forward, and the gradients of all its uses
are added up in half precision: ALBERT's one layer is used 12 times. Here the optimizer's float32
weight is copied once per step, every use reads the copy, and every use hands its part of the
gradient on in float32.
"""

from typing import Any

import torch
from torch import Tensor, nn

from detalbert.errors import UserError

FP8_FORWARD, FP8_BACKWARD = torch.float8_e4m3fn, torch.float8_e5m2  # finer; wider


class _Product(torch.autograd.Function):
    """x [T, in] times the transposed copy [out, in] of `weight`, plus bias -> [T, out]."""

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


class _Fp8Product(torch.autograd.Function):
    """As _Product, with both products over `copy` in fp8; the weight's gradient in half precision.

    copy, scale: of the weight, [out, in] and its transpose [in, out], times 1 / scale.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        copy: Tensor,
        transposed: Tensor,
        scale: Tensor,
        half: torch.dtype,
    ) -> Tensor:
        x = x.to(half)
        ctx.save_for_backward(x, transposed, scale)
        x8, x_scale = to_fp8(x, FP8_FORWARD)
        y = torch._scaled_mm(x8, copy.t(), scale_a=x_scale, scale_b=scale, out_dtype=half)
        return y + bias.to(half)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        x, transposed, scale = ctx.saved_tensors
        dy = dy.to(x.dtype)
        dy8, dy_scale = to_fp8(dy, FP8_BACKWARD)
        dx = torch._scaled_mm(
            dy8, transposed.t(), scale_a=dy_scale, scale_b=scale, out_dtype=x.dtype
        )
        return dx, weight_gradient(dy, x), dy.sum(0, dtype=torch.float32), None, None, None, None


def weight_gradient(dy: Tensor, x: Tensor) -> Tensor:
    """dy^T x in float32 [out, in] from half-precision dy [T, out] and x [T, in].

    The GPU's matrix units add up in float32 anyway; torch 2.8 and newer can leave it at that.
    """
    if not dy.is_cuda:
        return dy.t().float() @ x.float()
    if hasattr(torch.ops.aten.mm, "dtype"):
        return torch.mm(dy.t(), x, out_dtype=torch.float32)
    return (dy.t() @ x).float()


def to_fp8(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """`x` over its own scale, and the scale (float32, a scalar on the device): max |x| becomes the
    largest number of `dtype` (448 for e4m3, 57,344 for e5m2)."""
    largest = torch.finfo(dtype).max
    scale = (x.abs().amax().float() / largest).clamp(min=1e-12)
    return (x.float() / scale).clamp(-largest, largest).to(dtype), scale


class StepLinear(nn.Linear):
    """An nn.Linear that computes with a half-precision copy of its weight; see `refresh`."""

    copy: Tensor
    half_dtype: torch.dtype
    version = -1

    @classmethod
    def take_over(cls, linear: Any, half: torch.dtype) -> None:
        """Turn `linear` into one, in place: parameters, names and state dict stay."""
        linear.__class__ = cls
        linear.half_dtype = half
        linear.make_buffers()

    def make_buffers(self) -> None:
        self.register_buffer("copy", self.weight.to(self.half_dtype), persistent=False)

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy the weight again where it has changed since the last time."""
        if self.version != self.weight._version:
            self.write_buffers()
            self.version = self.weight._version

    def write_buffers(self) -> None:
        self.copy.copy_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, self.in_features)  # [T, in]
        return self.product(flat).view(*x.shape[:-1], self.out_features)

    def product(self, x: Tensor) -> Tensor:
        return _Product.apply(x, self.weight, self.bias, self.copy)


class Fp8Linear(StepLinear):
    """With fp8 products. Sizes and tokens must be multiples of 16, as the matrix units want."""

    transposed: Tensor
    scale: Tensor

    def make_buffers(self) -> None:
        copy, scale = to_fp8(self.weight.detach(), FP8_FORWARD)
        self.register_buffer("copy", copy, persistent=False)
        self.register_buffer("transposed", copy.t().contiguous(), persistent=False)
        self.register_buffer("scale", scale, persistent=False)

    def write_buffers(self) -> None:
        copy, scale = to_fp8(self.weight, FP8_FORWARD)
        self.copy.copy_(copy)
        self.transposed.copy_(copy.t())
        self.scale.copy_(scale)

    def product(self, x: Tensor) -> Tensor:
        buffers = self.copy, self.transposed, self.scale
        return _Fp8Product.apply(x, self.weight, self.bias, *buffers, self.half_dtype)


def take_over_layers(layers: list[nn.Module], half: torch.dtype, fp8: bool) -> list[StepLinear]:
    """Every nn.Linear inside `layers` becomes a StepLinear (or Fp8Linear where its sizes allow).

    Returns them, each once; call `refresh` on each before the first forward after a change.
    """
    taken: list[Any] = []
    for layer in layers:
        for module in layer.modules():
            if type(module) is nn.Linear and module.bias is not None:
                sized = fp8 and not (module.in_features % 16 or module.out_features % 16)
                (Fp8Linear if sized else StepLinear).take_over(module, half)
                taken.append(module)
    return taken


def resolve_precision(precision: str, device: torch.device) -> torch.dtype:
    """The dtype to compute in. "auto" is bf16 on Ampere and newer, fp16 on older NVIDIA GPUs
    and fp32 on a CPU; "fp8" computes in bf16 what is not a matrix product of a layer.

    Raises UserError for a precision that the device cannot do.
    """
    cuda = device.type == "cuda"
    capability = torch.cuda.get_device_capability(device) if cuda else (0, 0)
    key = "hyperparameters.precision"
    if precision == "fp16" and not cuda:
        raise UserError(f"{key}: fp16 needs a GPU; use auto, bf16 or fp32")
    if precision == "bf16" and cuda and capability < (8, 0):
        raise UserError(f"{key}: this GPU has no bf16; use auto or fp16")
    if precision == "fp8" and capability < (8, 9):
        raise UserError(f"{key}: fp8 needs a GPU of the Ada or Hopper generation; use auto")
    if precision == "auto":
        precision = "fp32" if not cuda else "bf16" if capability >= (8, 0) else "fp16"
    return {"fp16": torch.float16, "fp32": torch.float32}.get(precision, torch.bfloat16)
