"""CUDA's kernel for packed rows, by a stand-in: when it runs, and what it is called with."""

import functools
from typing import Any, NamedTuple
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn

from detalbert.engine import attention
from detalbert.engine import kernel as flash
from detalbert.engine.attention import RowBounds

# Of torch 2.10, 2.11 and 2.12: what follows query, key, value, their bounds and lengths.
OPTIONS = {
    10: {"is_causal"},
    11: {"scale", "window_size"},
    12: {"scale", "window_size", "enable_gqa"},
}
BOUND = 512  # of 3 tokens, rounded up


class Call(NamedTuple):
    """The shapes and the options of a call."""

    query: torch.Size
    key: torch.Size
    value: torch.Size
    options: dict[str, Any]


class Kernel:
    """Stands for torch's `varlen_attn`, of torch 2.12, over a row of two windows."""

    def __init__(self) -> None:
        self.bounds = RowBounds(torch.tensor([0, 2, 5], dtype=torch.int32), 5, 3)
        self.bounds.kernel = True
        self.calls: list[Call] = []

    def varlen_attn(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        cu_seq_q: Tensor,
        cu_seq_k: Tensor,
        max_q: int,
        max_k: int,
        **options: Any,
    ) -> Tensor:
        assert cu_seq_q is cu_seq_k is self.bounds.cu_seqlens
        assert max_q == max_k == BOUND
        self.calls.append(Call(query.shape, key.shape, value.shape, options))
        return query + 2 * key + 4 * value


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    kernel = Kernel()
    monkeypatch.setattr(flash, "varlen_attn", kernel.varlen_attn)
    monkeypatch.setattr(flash, "OPTIONS", OPTIONS[12])
    return kernel


def test_gpus_from_ampere_on_have_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = torch.device("cuda")
    monkeypatch.setattr(flash, "varlen_attn", object())
    for capability, expected in {(7, 5): False, (8, 0): True, (9, 0): True}.items():
        monkeypatch.setattr(torch.cuda, "get_device_capability", Mock(return_value=capability))
        assert flash.has_kernel(gpu) == expected
        assert not flash.has_kernel(torch.device("cpu"))

    monkeypatch.setattr(flash, "varlen_attn", None)  # before torch 2.10
    assert not flash.has_kernel(gpu)


@pytest.mark.parametrize(
    "dtype, size, dropout, by_kernel",
    [
        (torch.bfloat16, 256, 0.0, True),
        (torch.float16, 8, 0.0, True),
        (torch.float32, 8, 0.0, False),
        (torch.bfloat16, 264, 0.0, False),
        (torch.bfloat16, 8, 0.1, False),
    ],
)
def test_the_kernel_runs_what_it_can(
    dtype: torch.dtype, size: int, dropout: float, by_kernel: bool, kernel: Kernel
) -> None:
    q, k, v = torch.randint(2, (3, 1, 2, 5, size)).to(dtype)
    run = functools.partial(
        attention.packed_attention, nn.Module(), q, k, v, None, packed_layout=kernel.bounds
    )

    output, _ = run(dropout=dropout, scaling=0.3)

    assert output.shape == (1, 5, 2, size)
    if by_kernel:
        assert torch.equal(output, (q + 2 * k + 4 * v).transpose(1, 2))
        shape = torch.Size([5, 2, size])
        options = {"scale": 0.3, "window_size": (1 << 30, 1 << 30), "enable_gqa": False}
        assert kernel.calls == [Call(shape, shape, shape, options)]
    else:
        assert kernel.calls == []

    calls_before = len(kernel.calls)
    kernel.bounds.kernel = False
    run()
    assert len(kernel.calls) == calls_before


@pytest.mark.parametrize("version", OPTIONS)
@pytest.mark.parametrize("kv_heads", [2, 1])
def test_the_kernel_is_told_that_it_is_causal(
    version: int, kv_heads: int, kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flash, "OPTIONS", OPTIONS[version])
    query = torch.ones(1, 2, 5, 8, dtype=torch.bfloat16)
    key = torch.ones(1, kv_heads, 5, 8, dtype=torch.bfloat16)

    attention.causal_attention(nn.Module(), query, key, key, None, packed_layout=kernel.bounds)

    grouped = kv_heads == 1 and version == 12  # older ones: as many heads of keys as of queries
    options = {"is_causal": True, "scale": None, "window_size": (-1, 0), "enable_gqa": grouped}
    (call,) = kernel.calls
    assert call.key == (5, 1 if grouped else 2, 8)
    assert call.options == {name: options[name] for name in OPTIONS[version]}
