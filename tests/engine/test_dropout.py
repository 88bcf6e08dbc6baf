"""Dropout on a CPU: the rate, the mean, the gradient, and independence of neighbours."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from detalbert.engine.dropout import CpuDropout, drop
from detalbert.engine.forward import Forward


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_every_lane_of_a_number_drops_at_the_rate(rate: float) -> None:
    """Four elements share a number: their rates, and those of any two together."""
    torch.manual_seed(1)
    kept = (drop(torch.ones(400_000), rate) != 0).view(-1, 4).double()
    assert kept.mean(0).tolist() == pytest.approx([1 - rate] * 4, abs=0.005)
    together = kept.T @ kept / len(kept)
    apart = ~torch.eye(4, dtype=torch.bool)
    assert together[apart].tolist() == pytest.approx([(1 - rate) ** 2] * 12, abs=0.006)


TYPES = st.sampled_from([torch.float32, torch.bfloat16])


@given(st.lists(st.integers(0, 7), max_size=3), st.floats(0, 1), TYPES)
def test_an_element_is_dropped_or_scaled_and_so_is_its_gradient(
    shape: list[int], rate: float, dtype: torch.dtype
) -> None:
    x = torch.full(shape, 3.0, dtype=dtype, requires_grad=True)
    y = drop(x, rate)
    assert y.shape == x.shape and y.dtype == dtype
    rounded = round(rate * 65_536) / 65_536
    scale = 0.0 if rounded == 1 else 1 / (1 - rounded)
    expected = torch.where(y == 0, 0.0, 3.0 * scale).to(dtype)
    torch.testing.assert_close(y.detach(), expected)
    y.sum().backward()
    torch.testing.assert_close(x.grad, (y / 3).detach())


def test_a_seed_gives_the_same_mask_for_any_number_of_threads() -> None:
    masks, x = [], torch.ones(300, 301)
    for threads in (2, 1):  # and 1 is the tests'
        torch.set_num_threads(threads)
        torch.manual_seed(3)
        masks.append(drop(x, 0.1))
    assert torch.equal(*masks) and not torch.equal(masks[0], drop(x, 0.1))


def test_modules_take_it_over_on_a_cpu_alone() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.25))
    Forward(model, "fp32", torch.device("meta"))
    assert type(model[1]) is nn.Dropout
    Forward(model, "fp32", torch.device("cpu"))
    assert type(model[1]) is CpuDropout
    x = torch.ones(8, 4)
    assert torch.equal(model.eval()[1](x), x)
    assert model.train()[1](torch.ones(64, 4)).unique().tolist() == pytest.approx([0.0, 4 / 3])
