"""The gradient's norm on a CPU, beside fp64 sums: its error, its bits, a run that clips by it."""

import math

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn

from detalbert.engine.gradients import FlatGradients, euclidean_norm
from tests.conftest import max_examples

THREADS = (1, 2, 3, 8)
BLOCK = 1 << 20
MILLION = 1_000_000


@pytest.fixture(autouse=True)
def threads():
    """Every test changes the number of threads, or needs that of the others."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def norms_by_threads(values):
    norms = []
    for count in THREADS:
        torch.set_num_threads(count)
        norms.append(euclidean_norm(values))
    return norms


def exact_norm(values):
    """The norm by fp64 sums, without an fp64 copy of all values."""
    squares = [float(block.double().square().sum()) for block in values.split(BLOCK)]
    return math.sqrt(math.fsum(squares))


def repeated(count):
    """`count` numbers, a random block again and again, and their exact norm."""
    draw = torch.Generator().manual_seed(0)
    block = torch.randn(BLOCK, generator=draw) * 1e-3
    whole, remainder = divmod(count, BLOCK)
    values = torch.cat((block.repeat(whole), block[:remainder]))
    return values, math.hypot(math.sqrt(whole) * exact_norm(block), exact_norm(block[:remainder]))


KINDS = {
    "normal": lambda x: x,
    "all equal": lambda x: torch.full_like(x, 0.3),
    "few large": lambda x: x.pow(9),
    "ascending": lambda x: x.abs().sort().values,
    "descending": lambda x: x.abs().sort(descending=True).values,
    "mostly zero": lambda x: x * (x > 3),
}


@given(
    count=st.integers(0, 300_000),
    kind=st.sampled_from(sorted(KINDS)),
    scale=st.sampled_from([1e-12, 1e-3, 1.0, 1e6]),
    seed=st.integers(0, 99),
)
@example(count=0, kind="normal", scale=1.0, seed=0)
@example(count=2048, kind="normal", scale=1.0, seed=0)
@example(count=2 * 2048, kind="all equal", scale=1.0, seed=0)
@example(count=2048 * 2048, kind="all equal", scale=1.0, seed=0)
@max_examples(60)
def test_the_norm_is_right_whatever_the_numbers(count, kind, scale, seed):
    draw = torch.Generator().manual_seed(seed)
    values = KINDS[kind](torch.randn(count, generator=draw)) * scale
    norms = norms_by_threads(values)
    assert len({norm.item() for norm in norms}) == 1
    assert norms[0].item() == pytest.approx(exact_norm(values), rel=1e-5, abs=0)


@pytest.mark.parametrize("spoilt", [math.nan, math.inf])
def test_a_number_that_is_not_finite_shows_in_the_norm(spoilt):
    values, _ = repeated(MILLION)
    for place in (0, 54_321, len(values) - 1):
        values[place] = spoilt
        assert not euclidean_norm(values).isfinite()
        values[place] = 0.0


def test_a_gradient_of_any_layout_is_clipped_to_the_norm():
    """One buffer, and tensors of a sharded model: a matrix, its transpose, and some numbers."""
    values, exact = repeated(22 * MILLION)
    (parameter,) = nn.ParameterList([torch.zeros(len(values))])
    gradients = FlatGradients([parameter], slots=1)
    gradients.flat.copy_(values)
    assert gradients.clip(1.0).item() == pytest.approx(exact, rel=1e-6)
    assert exact_norm(gradients.flat) == pytest.approx(1.0, rel=2e-6)
    # As torch's clip_grad_norm_: the limit is divided by the norm and 1e-6.
    gradients.clip(1e-6)
    gradients.clip(1e-6)
    assert exact_norm(gradients.flat) == pytest.approx(5e-7, rel=1e-3)
