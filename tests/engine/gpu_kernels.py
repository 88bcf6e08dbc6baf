"""On a CPU, what a GPU's kernels and its autocast keep in memory: for counting, not for results."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from detalbert.engine import attention, forward, precision


def use_gpu_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention has one output, as of CUDA's kernel; on a CPU each window has its own, and they are
    joined. Dropout keeps a byte an element. Under autocast norms and softmax are fp32 on CUDA, and
    half precision on a CPU. A weight's gradient is one product.
    """
    monkeypatch.setattr(attention, "_without_kernel", _attend)
    monkeypatch.setattr(F, "dropout", _drop)
    for name in ("layer_norm", "softmax"):
        monkeypatch.setattr(F, name, _in_fp32(getattr(F, name)))
    monkeypatch.setattr(precision, "weight_gradient", _weight_gradient)
    # Of what is faster on a CPU, nothing.
    monkeypatch.setattr(forward, "CpuGelu", partial(nn.GELU, approximate="tanh"))
    monkeypatch.setattr(forward.CpuDropout, "convert", lambda model: None)


def _attend(query: Tensor, key: Tensor, value: Tensor, layout: Any, options: Any) -> Tensor:
    output = F.scaled_dot_product_attention(
        query, key, value, is_causal=options.causal, scale=options.scaling
    )
    return output.transpose(1, 2)


def _drop(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    return torch.native_dropout(x, p, True)[0] if training and p else x


def _in_fp32(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def exact(x: Tensor, *arguments: Any, **options: Any) -> Tensor:
        if not torch.is_autocast_enabled("cpu"):
            return function(x, *arguments, **options)
        with torch.autocast("cpu", enabled=False):
            return function(x.float(), *arguments, **options)

    return exact


def _weight_gradient(dy: Tensor, x: Tensor) -> Tensor:
    return dy.new_empty(dy.shape[1], x.shape[1], dtype=torch.float32)
