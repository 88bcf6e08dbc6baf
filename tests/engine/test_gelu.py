"""The GELU of a CPU: against the formula in double precision, and where it is used."""

from functools import partial

import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from transformers.activations import GELUTanh, NewGELUActivation

from detalbert.engine.forward import Forward
from detalbert.engine.gelu import CpuGelu

formula = partial(F.gelu, approximate="tanh")


@given(st.lists(st.floats(-1e4, 1e4, width=32), min_size=1), st.floats(-100, 100, width=32))
def test_value_and_gradient_are_those_of_the_formula(values: list[float], weight: float) -> None:
    x = torch.tensor(values, requires_grad=True)
    exact = x.detach().double().requires_grad_()
    got, wanted = CpuGelu()(x), formula(exact)
    (got * weight).sum().backward()
    (wanted * weight).sum().backward()
    torch.testing.assert_close(got.double(), wanted, rtol=1e-6, atol=1e-6)
    atol = 2e-6 * max(1, abs(weight))
    torch.testing.assert_close(x.grad.double(), exact.grad, rtol=2e-6, atol=atol)
    with torch.no_grad():
        assert torch.equal(CpuGelu()(x), got.detach())  # as a validation has it
    assert x.tolist() == torch.tensor(values).tolist()  # worked in place nowhere


def test_other_types_and_devices_are_torchs() -> None:
    for dtype in (torch.bfloat16, torch.float64):
        x = torch.linspace(-4, 4, 100, dtype=dtype)
        assert torch.equal(CpuGelu()(x), formula(x))
    for device, kind in (("cpu", CpuGelu), ("meta", nn.GELU)):
        model = nn.Sequential(nn.Linear(4, 4), GELUTanh(), NewGELUActivation())
        Forward(model, "fp32", torch.device(device))
        assert type(model[1]) is type(model[2]) is kind
