"""One buffer of gradients: views, clipping, and the all-reduce over ranks."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from detalbert.engine.gradients import FlatGradients, all_reduce
from tests.lm.ranks import start

TINY = (1e-30, 1e-37, 1e-44)  # largest gradients; the last is no normal float32


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, 3))


def test_backward_adds_into_the_buffer_and_zero_clears_it() -> None:
    ours, plain = model(), model()
    gradients = FlatGradients(ours.parameters(), slots=1)
    x = torch.randn(4, 7)
    for net in (ours, plain):
        net(x).sum().backward()
        net(2 * x).square().sum().backward()
    for got, wanted in zip(ours.parameters(), plain.parameters(), strict=True):
        assert torch.equal(got.grad, wanted.grad)
        assert got.grad.untyped_storage().data_ptr() == gradients.flat.untyped_storage().data_ptr()
    gradients.zero()
    assert not any(p.grad.any() for p in ours.parameters())


def test_every_gradient_begins_at_a_multiple_of_128_bytes() -> None:
    net = model()
    gradients = FlatGradients(net.parameters(), slots=1)
    assert [p.grad.storage_offset() for p in net.parameters()] == [0, 64, 96, 128]
    assert len(gradients.flat) == 160  # 35, 5, 15 and 3 numbers


@pytest.mark.parametrize("max_norm", [0.5, 1e6])
def test_clipping_is_torchs(max_norm: float) -> None:
    ours, plain = model(), model()
    gradients = FlatGradients(ours.parameters(), slots=1)
    for net in (ours, plain):
        net(torch.ones(4, 7)).square().sum().backward()
    gradients.clip(max_norm)
    torch.nn.utils.clip_grad_norm_(plain.parameters(), max_norm)
    for got, wanted in zip(ours.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(got.grad, wanted.grad, rtol=1e-6, atol=0)


def _all_reduced(ranks: int) -> dict[str, torch.Tensor]:
    """On each rank: what it has after every kind of all-reduce."""
    rank = dist.get_rank()
    seen: dict[str, Any] = {}
    for wire in (torch.float32, torch.bfloat16, torch.float16):
        for size, scale in ((1, 1.0), (1000, 1e-6), (1001, 1e4)):
            flat = _addend(rank, size, scale)
            all_reduce(flat, wire)
            seen[f"{wire} {size}"] = flat
    zeros = torch.zeros(5)
    all_reduce(zeros, torch.float16)
    for tiny in TINY:
        flat = torch.tensor([tiny, -tiny, 0.0, tiny / 8])
        all_reduce(flat, torch.float16)
        seen[f"tiny {tiny}"] = flat
    broken = torch.tensor([1.0, float("nan")])
    all_reduce(broken, torch.float16)
    seen["zeros"], seen["broken"] = zeros, broken
    net = model()
    with torch.no_grad():
        net[0].weight.add_(rank)  # FlatGradients makes all ranks start from rank 0's
    gradients = FlatGradients(net.parameters(), ranks, "bf16")
    net(torch.full((2, 7), float(rank))).sum().backward()
    gradients.average()
    seen["weight"], seen["mean"] = net[0].weight.detach(), gradients.flat
    return seen


def _addend(rank: int, size: int, scale: float) -> torch.Tensor:
    draw = torch.Generator().manual_seed(100 * rank + size)
    return torch.randn(size, generator=draw) * scale


@pytest.mark.parametrize("ranks", [2, 3])
def test_every_rank_gets_the_same_sum(ranks: int, tmp_path: Path, fork: None) -> None:
    seen = start(_all_reduced, ranks, tmp_path, ranks)
    for name in seen[0]:
        for other in seen[1:]:
            torch.testing.assert_close(other[name], seen[0][name], rtol=0, atol=0, equal_nan=True)
    bounds = {torch.float32: 1e-6, torch.float16: 2**-10, torch.bfloat16: 2**-7}
    for size, scale in ((1, 1.0), (1000, 1e-6), (1001, 1e4)):
        parts = [_addend(rank, size, scale).double() for rank in range(ranks)]
        largest = torch.stack(parts).abs().sum(0)
        for wire, bound in bounds.items():
            off = (seen[0][f"{wire} {size}"].double() - sum(parts)).abs()
            # fp16 is scaled by the largest gradient; the smallest then fall below its normal range.
            assert (off <= bound * largest + 1e-6 * bound * scale * 100).all(), (wire, size)
    for size in (1000, 1001):  # what has travelled is no finer than its wire
        sent = seen[0][f"{torch.bfloat16} {size}"]
        assert torch.equal(sent, sent.bfloat16().float())
        exact = seen[0][f"{torch.float32} {size}"]
        assert not torch.equal(exact, exact.bfloat16().float())
    for tiny in TINY:
        wanted = torch.tensor([tiny, -tiny, 0.0, tiny / 8]) * ranks
        torch.testing.assert_close(seen[0][f"tiny {tiny}"], wanted, rtol=2**-8, atol=1e-40)
    assert not seen[0]["zeros"].any()
    assert not torch.isfinite(seen[0]["broken"]).all()
    assert torch.equal(seen[0]["weight"], model()[0].weight)
    net = model()
    total = FlatGradients(net.parameters(), slots=1)
    for rank in range(ranks):
        net(torch.full((2, 7), float(rank))).sum().backward()
    torch.testing.assert_close(seen[0]["mean"], total.flat / ranks, rtol=2**-6, atol=2**-6)
