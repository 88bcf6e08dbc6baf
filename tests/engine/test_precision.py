"""Half-precision linear layers: the same numbers as autocast's, gradients gathered in float32."""

from typing import Any

import pytest
import torch
from torch import nn

from detalbert.engine.precision import StepLinear, resolve_precision, take_over_layers
from detalbert.errors import UserError

HALF = torch.bfloat16


def pair():
    torch.manual_seed(0)
    linear, plain = nn.Linear(64, 32), nn.Linear(64, 32)
    plain.load_state_dict(linear.state_dict())
    StepLinear.take_over(linear, HALF)
    linear.refresh()
    return linear, plain


def run(linear: nn.Module, x: torch.Tensor, uses: int, autocast: bool):
    """Mean of `uses` applications to different inputs; gradients of input, weight and bias."""
    x = x.clone().requires_grad_()
    with torch.autocast("cpu", HALF, enabled=autocast):
        out = sum(linear(x * (0.3 + use)).float() for use in range(uses))
    linear.zero_grad()
    out.square().sum().backward()
    return out, x.grad, linear.weight.grad, linear.bias.grad


def error(got: torch.Tensor, exact: torch.Tensor) -> float:
    return ((got - exact).norm() / exact.norm()).item()


def test_one_use_gives_what_autocast_gives() -> None:
    linear, plain = pair()
    x = torch.randn(3, 5, 64)
    ours, autocasts = run(linear, x, 1, autocast=True), run(plain, x, 1, autocast=True)
    assert ours[0].shape == (3, 5, 32)
    for got, wanted in zip(ours, autocasts, strict=True):
        torch.testing.assert_close(got, wanted, rtol=2e-2, atol=2e-2)


def test_gradients_of_many_uses_are_gathered_in_fp32() -> None:
    linear, plain = pair()
    x = torch.randn(40, 64)
    exact = run(plain, x, 48, autocast=False)
    autocasts = run(plain, x, 48, autocast=True)[2]
    ours = run(linear, x, 48, autocast=True)[2]
    assert ours.dtype is torch.float32
    # With exact inputs the sum alone decides; autocast adds 48 half-precision gradients.
    assert error(ours, exact[2]) < error(autocasts, exact[2])


def test_the_copy_follows_the_weight_when_refreshed_and_only_then() -> None:
    linear, _ = pair()
    with torch.no_grad():
        linear.weight.mul_(2)
    assert not torch.equal(linear.copy, linear.weight.to(HALF))
    linear.refresh()
    assert torch.equal(linear.copy, linear.weight.to(HALF))
    linear.copy.zero_()
    linear.refresh()  # nothing has changed since
    assert not linear.copy.any()
    linear.load_state_dict({name: x.clone() for name, x in linear.state_dict().items()})
    linear.refresh()
    assert linear.copy.any()


def test_names_and_state_stay() -> None:
    linear, plain = pair()
    assert list(linear.state_dict()) == list(plain.state_dict()) == ["weight", "bias"]
    assert isinstance(linear, nn.Linear)


def test_layers_are_taken_over_once() -> None:
    layer = nn.Sequential(nn.Linear(32, 48), nn.Linear(48, 20), nn.LayerNorm(20))
    taken = take_over_layers([layer], HALF)
    assert [type(linear) for linear in taken] == [StepLinear, StepLinear]
    assert take_over_layers([layer], HALF) == []


@pytest.mark.parametrize(
    ("precision", "capability", "dtype"),
    [
        ("auto", (7, 0), torch.float16), ("auto", (7, 5), torch.float16),
        ("auto", (8, 0), torch.bfloat16), ("auto", (9, 0), torch.bfloat16),
        ("auto", None, torch.float32), ("fp32", (9, 0), torch.float32),
        ("fp16", (7, 0), torch.float16), ("fp16", None, "fp16 needs a GPU"),
        ("bf16", (7, 5), "no bf16"), ("bf16", (8, 0), torch.bfloat16),
        ("bf16", None, torch.bfloat16),
    ],
)  # fmt: skip
def test_precisions_of_devices(
    precision: str, capability: Any, dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    device = torch.device("cuda" if capability else "cpu")
    if isinstance(dtype, str):
        with pytest.raises(UserError, match=rf"^hyperparameters\.precision: .*{dtype}"):
            resolve_precision(precision, device)
    else:
        assert resolve_precision(precision, device) is dtype
