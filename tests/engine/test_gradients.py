"""One buffer of gradients: views, clipping, and the all-reduce over ranks."""

from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from detalbert.engine.gradients import FlatGradients, all_reduce
from tests.lm.ranks import start


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
    # 35, 5, 15 and 3 numbers: every gradient begins at a multiple of 128 bytes
    assert [p.grad.storage_offset() for p in ours.parameters()] == [0, 64, 96, 128]
    assert len(gradients.flat) == 160


def _addend(rank: int, size: int, scale: float) -> torch.Tensor:
    draw = torch.Generator().manual_seed(100 * rank + size)
    return torch.randn(size, generator=draw) * scale


def _row_gradients(net: nn.Module, slots: int, rank: int) -> FlatGradients:
    gradients = FlatGradients(net.parameters(), slots, "bf16")
    net(torch.full((2, 7), float(rank))).sum().backward()
    return gradients


SIZES = {1: 1.0, 1000: 1e-6, 1001: 1e4}  # numbers: their scale
SPECIAL = {f"tiny {x}": [x, -x, 0.0, x / 8] for x in (1e-30, 1e-37, 1e-44)}  # the last: no normal
SPECIAL |= {"zeros": [0.0] * 5, "broken": [1.0, float("nan")]}
# fp16 is scaled by the largest gradient; the smallest then fall below its normal range.
BOUNDS = {torch.float32: 1e-6, torch.float16: 2**-10, torch.bfloat16: 2**-7}


def _all_reduced(ranks: int) -> dict[str, torch.Tensor]:
    rank = dist.get_rank()
    seen = {f"{x} {n}": _addend(rank, n, SIZES[n]) for n in SIZES for x in BOUNDS}
    for wire in BOUNDS:
        for size in SIZES:
            all_reduce(seen[f"{wire} {size}"], wire)
    for name, values in SPECIAL.items():
        seen[name] = torch.tensor(values)
        all_reduce(seen[name], torch.float16)
    net = model()
    with torch.no_grad():
        net[0].weight.add_(rank)  # FlatGradients makes all ranks start from rank 0's
    gradients = _row_gradients(net, ranks, rank)
    gradients.average()
    return {**seen, "weight": net[0].weight.detach(), "mean": gradients.flat}


def test_every_rank_gets_the_same_sum(tmp_path: Path, fork: None) -> None:
    ranks = 3
    seen = start(_all_reduced, ranks, tmp_path, ranks)
    for name in seen[0]:
        for other in seen[1:]:
            torch.testing.assert_close(other[name], seen[0][name], rtol=0, atol=0, equal_nan=True)
    for size, scale in SIZES.items():
        parts = [_addend(rank, size, scale).double() for rank in range(ranks)]
        largest = torch.stack(parts).abs().sum(0)
        for wire, bound in BOUNDS.items():
            off = (seen[0][f"{wire} {size}"].double() - sum(parts)).abs()
            assert (off <= bound * largest + 1e-6 * bound * scale * 100).all(), (wire, size)
    for size in (1000, 1001):  # what has travelled is no finer than its wire
        sent, exact = (seen[0][f"{x} {size}"] for x in (torch.bfloat16, torch.float32))
        assert torch.equal(sent, sent.bfloat16().float())
        assert not torch.equal(exact, exact.bfloat16().float())
    for name, values in SPECIAL.items():
        if name != "broken":
            wanted = torch.tensor(values) * ranks
            torch.testing.assert_close(seen[0][name], wanted, rtol=2**-8, atol=1e-40)
    assert not torch.isfinite(seen[0]["broken"]).all()
    assert torch.equal(seen[0]["weight"], model()[0].weight)
    total = sum(_row_gradients(model(), 1, rank).flat for rank in range(ranks))
    torch.testing.assert_close(seen[0]["mean"], total / ranks, rtol=2**-6, atol=2**-6)
