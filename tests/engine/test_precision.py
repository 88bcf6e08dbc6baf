"""Half-precision linear layers: the same numbers as autocast's, gradients gathered in float32."""

import pytest
import torch
from torch import nn

from detalbert.engine.forward import resolve_precision
from detalbert.engine.precision import convert_layers
from detalbert.errors import UserError

HALF = torch.bfloat16


def pair():
    torch.manual_seed(0)
    linear, plain = nn.Linear(64, 32), nn.Linear(64, 32)
    plain.load_state_dict(linear.state_dict())
    convert_layers([linear], HALF)
    linear.refresh()
    return linear, plain


def run(linear, x, uses, autocast):
    x = x.clone().requires_grad_()
    with torch.autocast("cpu", HALF, enabled=autocast):
        out = sum(linear(x * (0.3 + use)).float() for use in range(uses))
    linear.zero_grad()
    out.square().sum().backward()
    return out, x.grad, linear.weight.grad, linear.bias.grad


def test_gradients_of_many_uses_are_gathered_in_fp32():
    linear, plain = pair()
    x = torch.randn(40, 64)
    exact, autocasts = (run(plain, x, 48, autocast)[2] for autocast in (False, True))
    ours = run(linear, x, 48, autocast=True)[2]
    assert ours.dtype is torch.float32
    # With exact inputs the sum alone decides; autocast adds 48 half-precision gradients.
    assert (ours - exact).norm() < (autocasts - exact).norm()


def test_the_copy_follows_the_weight_when_refreshed_and_only_then():
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


V100, T4, A100, H100 = (7, 0), (7, 5), (8, 0), (9, 0)
PRECISIONS = [
    ("auto", V100, "float16"), ("auto", T4, "float16"), ("auto", A100, "bfloat16"),
    ("auto", H100, "bfloat16"), ("auto", None, "float32"), ("fp32", H100, "float32"),
    ("fp16", V100, "float16"), ("fp16", None, "fp16 needs a GPU"), ("bf16", T4, "no bf16"),
    ("bf16", A100, "bfloat16"), ("bf16", None, "bfloat16"),
]  # fmt: skip


@pytest.mark.parametrize(("precision", "capability", "wanted"), PRECISIONS)
def test_precisions_of_devices(precision, capability, wanted, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    device = torch.device("cuda" if capability else "cpu")
    if " " in wanted:
        with pytest.raises(UserError, match=rf"^hyperparameters\.precision: .*{wanted}"):
            resolve_precision(precision, device)
    else:
        assert resolve_precision(precision, device) is getattr(torch, wanted)
