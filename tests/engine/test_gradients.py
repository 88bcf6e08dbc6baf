"""One buffer of gradients: views, clipping, and the all-reduce over ranks."""

from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from detalbert.engine.gradients import FlatGradients, all_reduce
from tests.lm.ranks import start


def make_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, 3))


def test_backward_adds_into_the_buffer_and_zero_clears_it() -> None:
    model = make_model()
    plain = make_model()
    gradients = FlatGradients(model.parameters(), slots=1)
    inputs = torch.randn(4, 7)
    for net in (model, plain):
        net(inputs).sum().backward()
        net(2 * inputs).square().sum().backward()

    buffer = gradients.flat.untyped_storage().data_ptr()
    for parameter, expected in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(parameter.grad, expected.grad)
        assert parameter.grad.untyped_storage().data_ptr() == buffer

    gradients.zero()
    assert not any(parameter.grad.any() for parameter in model.parameters())
    # 35, 5, 15 and 3 numbers: every gradient begins at a multiple of 128 bytes
    offsets = [parameter.grad.storage_offset() for parameter in model.parameters()]
    assert offsets == [0, 64, 96, 128]
    assert len(gradients.flat) == 160


RANKS = 3
SCALES = {1: 1.0, 1000: 1e-6, 1001: 1e4}  # by how many numbers are summed
SPECIAL = {
    "tiny": [1e-30, -1e-30, 0.0, 1.25e-31],
    "smaller": [1e-37, -1e-37, 0.0, 1.25e-38],
    "not normal": [1e-44, -1e-44, 0.0, 1e-44 / 8],
    "zeros": [0.0] * 5,
    "broken": [1.0, float("nan")],
}
# fp16 is scaled by the largest gradient; the smallest then fall below its normal range.
BOUNDS = {torch.float32: 1e-6, torch.float16: 2**-10, torch.bfloat16: 2**-7}


class Reduced(NamedTuple):
    """What a rank has after the all-reduces."""

    sums: dict[tuple[torch.dtype, int], Tensor]  # by wire and size
    special: dict[str, Tensor]
    weight: Tensor
    mean: Tensor  # of the ranks' gradients


def _addend(rank: int, size: int) -> Tensor:
    generator = torch.Generator().manual_seed(100 * rank + size)
    return torch.randn(size, generator=generator) * SCALES[size]


def _row_gradients(net: nn.Module, slots: int, rank: int) -> FlatGradients:
    gradients = FlatGradients(net.parameters(), slots, "bf16")
    net(torch.full((2, 7), float(rank))).sum().backward()
    return gradients


def _all_reduced() -> Reduced:
    rank = dist.get_rank()
    sums = {}
    for wire in BOUNDS:
        for size in SCALES:
            sums[wire, size] = _addend(rank, size)
            all_reduce(sums[wire, size], wire)
    special = {}
    for name, values in SPECIAL.items():
        special[name] = torch.tensor(values)
        all_reduce(special[name], torch.float16)

    net = make_model()
    weight = net[0].weight.detach()
    weight.add_(rank)  # FlatGradients makes all ranks start from rank 0's
    gradients = _row_gradients(net, RANKS, rank)
    gradients.average()
    return Reduced(sums=sums, special=special, weight=weight, mean=gradients.flat)


def test_every_rank_gets_the_same_sum(tmp_path: Path, fork: None) -> None:
    results: list[Reduced] = start(_all_reduced, RANKS, tmp_path)

    reduced = results[0]
    for other in results[1:]:
        torch.testing.assert_close(other, reduced, rtol=0, atol=0, equal_nan=True)
    for size, scale in SCALES.items():
        addends = torch.stack([_addend(rank, size) for rank in range(RANKS)]).double()
        magnitude = addends.abs().sum(0)
        for wire, bound in BOUNDS.items():
            error = (reduced.sums[wire, size].double() - addends.sum(0)).abs()
            assert (error <= bound * magnitude + 1e-6 * bound * scale * 100).all(), (wire, size)

    for size in (1000, 1001):  # what has travelled is no finer than its wire
        half = reduced.sums[torch.bfloat16, size]
        exact = reduced.sums[torch.float32, size]
        assert torch.equal(half, half.bfloat16().float())
        assert not torch.equal(exact, exact.bfloat16().float())

    for name in ("tiny", "smaller", "not normal", "zeros"):
        expected = torch.tensor(SPECIAL[name]) * RANKS
        torch.testing.assert_close(reduced.special[name], expected, rtol=2**-8, atol=1e-40)
    assert not torch.isfinite(reduced.special["broken"]).all()

    assert torch.equal(reduced.weight, make_model()[0].weight)
    rank_gradients = [_row_gradients(make_model(), 1, rank).flat for rank in range(RANKS)]
    mean = torch.stack(rank_gradients).mean(0)
    torch.testing.assert_close(reduced.mean, mean, rtol=2**-6, atol=2**-6)
