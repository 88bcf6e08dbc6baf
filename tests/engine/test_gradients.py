"""One buffer of gradients: views, clipping, and the all-reduce over ranks."""

from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from detalbert.engine.gradients import FlatGradients
from tests.lm.ranks import start


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, 3))


def test_backward_adds_into_the_buffer_and_zero_clears_it():
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


class Reduced(NamedTuple):
    """What a rank has after the all-reduce."""

    weight: Tensor
    mean: Tensor  # of the ranks' gradients


def _row_gradients(net, slots, rank):
    gradients = FlatGradients(net.parameters(), slots)
    net(torch.full((2, 7), float(rank))).sum().backward()
    return gradients


def _all_reduced():
    rank = dist.get_rank()
    net = make_model()
    weight = net[0].weight.detach()
    weight.add_(rank)  # FlatGradients makes all ranks start from rank 0's
    gradients = _row_gradients(net, RANKS, rank)
    gradients.average()
    return Reduced(weight=weight, mean=gradients.flat)


def test_every_rank_gets_the_same_mean(tmp_path, fork):
    results = start(_all_reduced, RANKS, tmp_path)

    reduced = results[0]
    for other in results[1:]:
        torch.testing.assert_close(other, reduced, rtol=0, atol=0)
    assert torch.equal(reduced.weight, make_model()[0].weight)
    rank_gradients = [_row_gradients(make_model(), 1, rank).flat for rank in range(RANKS)]
    torch.testing.assert_close(reduced.mean, torch.stack(rank_gradients).mean(0))
