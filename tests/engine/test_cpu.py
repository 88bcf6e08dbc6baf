"""What a CPU does in its own way: the GELU, dropout, memory that is used again."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from detalbert.engine.cpu import CpuDropout, CpuGelu, drop
from detalbert.engine.forward import Forward
from tests.fakes.encoders import make_model

formula = partial(F.gelu, approximate="tanh")


@given(st.lists(st.floats(-1e4, 1e4, width=32), min_size=1), st.floats(-100, 100, width=32))
def test_value_and_gradient_are_those_of_the_formula(values, weight):
    x = torch.tensor(values, requires_grad=True)
    exact = x.detach().double().requires_grad_()
    output = CpuGelu()(x)
    expected = formula(exact)
    (output * weight).sum().backward()
    (expected * weight).sum().backward()
    torch.testing.assert_close(output.double(), expected, rtol=1e-6, atol=1e-6)
    atol = 2e-6 * max(1, abs(weight))
    torch.testing.assert_close(x.grad.double(), exact.grad, rtol=2e-6, atol=atol)
    with torch.no_grad():
        assert torch.equal(CpuGelu()(x), output.detach())  # as a validation has it
    assert x.tolist() == torch.tensor(values).tolist()  # worked in place nowhere


def test_half_precision_is_torchs_own():
    x = torch.linspace(-4, 4, 999, dtype=torch.bfloat16)
    assert torch.equal(CpuGelu()(x), formula(x))


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_every_lane_of_a_number_drops_at_the_rate(rate):
    torch.manual_seed(1)
    dropped = drop(torch.ones(400_000), rate) == 0
    lanes = (~dropped).view(-1, 4).double()  # 1 where a number stays
    assert lanes.mean(0).tolist() == pytest.approx([1 - rate] * 4, abs=0.005)

    # Two lanes stay independently of each other.
    together = lanes.T @ lanes / len(lanes)
    different_lanes = ~torch.eye(4, dtype=torch.bool)
    expected = [(1 - rate) ** 2] * 12
    assert together[different_lanes].tolist() == pytest.approx(expected, abs=0.006)


@pytest.mark.parametrize("compiled", [False, True])
def test_each_dropout_of_a_model_is_this_one_unless_torch_compiles_it(compiled):
    model = make_model()
    Forward(model, "fp32", torch.device("cpu"), compiled=compiled)
    kinds = {type(module) for module in model.modules() if isinstance(module, nn.Dropout)}
    assert kinds == {nn.Dropout if compiled else CpuDropout}


def test_at_the_highest_rate_one_number_of_65_536_stays():
    torch.manual_seed(1)
    stays = drop(torch.ones(4_000_000), 65_535 / 65_536) > 0
    assert 30 < int(stays.sum()) < 100


TYPES = st.sampled_from([torch.float32, torch.bfloat16])


@given(st.lists(st.integers(0, 7), max_size=3), st.floats(0, 1), TYPES)
def test_an_element_is_dropped_or_scaled_and_so_is_its_gradient(shape, rate, dtype):
    x = torch.full(shape, 3.0, dtype=dtype, requires_grad=True)
    y = drop(x, rate)
    assert y.shape == x.shape
    assert y.dtype == dtype
    rounded = round(rate * 65_536) / 65_536
    scale = 0.0 if rounded == 1 else 1 / (1 - rounded)
    expected = torch.where(y == 0, 0.0, 3.0 * scale).to(dtype)
    torch.testing.assert_close(y.detach(), expected)
    y.sum().backward()
    torch.testing.assert_close(x.grad, (y / 3).detach())


def test_a_seed_gives_the_same_mask_for_any_number_of_threads():
    x = torch.ones(300, 301)

    def drop_with(threads):
        torch.set_num_threads(threads)
        torch.manual_seed(3)
        return drop(x, 0.1)

    dropped = drop_with(threads=2)
    assert torch.equal(drop_with(threads=1), dropped)  # and 1 is the tests'
    assert not torch.equal(drop(x, 0.1), dropped)
