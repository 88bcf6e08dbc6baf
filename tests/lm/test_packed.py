"""Packed rows, and the loss over the head, against documents apart and torch's cross-entropy."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoConfig

from detalbert.engine.attention import RowBounds
from detalbert.errors import UserError
from lm import packed
from lm.loss import head_loss
from lm.packed import NO_TARGET, check_family, count_targets, pack
from tests.lm.ranks import SHAPES, tiny

SEGMENTS = st.lists(st.integers(1, 9), min_size=1, max_size=5)  # their lengths, in a window
WINDOWS = st.lists(
    SEGMENTS.filter(lambda lengths: sum(lengths) > 1),
    min_size=1,
    max_size=4,
)


@given(WINDOWS)
def test_a_row_holds_each_segment_and_what_comes_next_in_it(windows):
    inputs = []
    targets = []
    positions = []
    bounds = [0]
    packed_windows = []
    for number, lengths in enumerate(windows):
        tokens = torch.arange(100 * number, 100 * number + sum(lengths))
        packed_windows.append((tokens, torch.tensor(lengths)))

        # A window's last token is only a target; no target crosses the end of a segment.
        *segments, last = [segment.tolist() for segment in tokens.split(lengths)]
        for segment in segments:
            targets += [*segment[1:], NO_TARGET]
        targets += last[1:]
        for segment in [*segments, last[:-1]]:
            if segment:
                inputs += segment
                positions += range(len(segment))
                bounds.append(len(inputs))

    row = pack(packed_windows)

    assert row["input_ids"].tolist() == inputs
    assert row["targets"].tolist() == targets
    assert row["position_ids"].tolist() == positions
    assert row["cu_seqlens"].tolist() == bounds
    assert row["cu_seqlens"].dtype is torch.int32
    assert row["max_length"] == 1 + max(positions)
    assert count_targets(row) == sum(sum(lengths) - len(lengths) for lengths in windows)


def config_of(family):
    return tiny(family) if family in SHAPES else AutoConfig.for_model(family)


@pytest.mark.parametrize("family", [*SHAPES, "opt", "qwen3", "olmo2"])
def test_families_that_read_packed_rows_rightly_are_taken(family):
    check_family(config_of(family))


@pytest.mark.parametrize("family", [*SHAPES, "opt"])
def test_a_planted_leak_is_found(family, monkeypatch):
    def one_segment(cu_seqlens, tokens, longest):
        return RowBounds(torch.IntTensor([0, tokens]), tokens, tokens)

    monkeypatch.setattr(packed, "RowBounds", one_segment)
    with pytest.raises(UserError, match=f"{family} reads packed rows wrongly.*off by [01]"):
        check_family(config_of(family))


REFUSED = {
    "bloom": "reads packed rows wrongly",
    "phi": "reads packed rows wrongly",  # it has a bias in its head
    "cohere": "reads packed rows wrongly",  # it has a scale after its head
    "bert": "reads packed rows wrongly",
    "mistral": "uses sliding_window",
    "gptj": "does not read packed rows",
}


@pytest.mark.parametrize(("family", "problem"), REFUSED.items())
def test_families_that_do_not_are_refused(family, problem):
    before = torch.random.get_rng_state()
    with pytest.raises(UserError, match=f"model: .*{problem}.*(Llama|llama) or"):
        check_family(AutoConfig.for_model(family))
    assert torch.equal(torch.random.get_rng_state(), before)


@given(st.integers(1, 40), st.integers(1, 41), st.integers(0, 99), st.floats(0, 1))
def test_loss_and_gradients_are_those_of_the_whole(tokens, chunk, seed, without_target):
    torch.manual_seed(seed)
    hidden = torch.randn(tokens, 16, requires_grad=True)
    weight = torch.randn(57, 16, requires_grad=True)
    targets = torch.randint(57, (tokens,))
    targets[torch.rand(tokens) < without_target] = NO_TARGET
    logits = hidden @ weight.t()
    expected = F.cross_entropy(logits, targets, reduction="sum")
    predicted = (logits.argmax(1) == targets) & (targets != NO_TARGET)

    loss, correct = head_loss(hidden, weight, targets, chunk=chunk)

    assert correct == predicted.sum()
    assert_close(loss, expected)
    # The factor stands for the division by a step's targets, and for a loss scale.
    gradients = torch.autograd.grad(0.3 * loss, [hidden, weight])
    expected_gradients = torch.autograd.grad(0.3 * expected, [hidden, weight])
    for gradient, expected_gradient in zip(gradients, expected_gradients, strict=True):
        assert_close(gradient, expected_gradient)


def assert_close(tensor, expected):
    """Rounding is all that differs."""
    tolerance = 1e-6 * max(1.0, expected.norm().item())
    assert (tensor - expected).norm() <= tolerance


class _Largest(TorchDispatchMode):
    """Notes the size of the largest tensor that is computed."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            self.numbers = max(self.numbers, result.numel())
        return result


def test_logits_are_never_whole():
    hidden = torch.randn(512, 4, requires_grad=True)
    weight = torch.randn(1000, 4, requires_grad=True)
    targets = torch.zeros(512, dtype=torch.long)
    with _Largest() as largest:
        loss, _ = head_loss(hidden, weight, targets, chunk=32)
        loss.backward()
    assert largest.numbers == 32 * 1000  # and not 512 * 1000


def test_half_precision_sums_in_float32():
    torch.manual_seed(0)
    hidden = torch.randn(300, 32).bfloat16()
    weight = torch.randn(57, 32).bfloat16()
    targets = torch.randint(57, (300,))
    gradients = []
    for dtype in (torch.float32, torch.bfloat16):
        typed_weight = weight.to(dtype).requires_grad_()
        loss, _ = head_loss(hidden.to(dtype), typed_weight, targets, chunk=7)
        loss.backward()
        assert loss.dtype is torch.float32
        gradients.append(typed_weight.grad.float())
    exact, half = gradients
    assert (half - exact).norm() < 5e-3 * exact.norm()


@pytest.mark.parametrize(("kv_heads", "tiny_heads"), [(8, 4), (2, 2), (1, 1)])
def test_the_tiny_model_shares_keys_among_heads_as_the_model_does(kv_heads, tiny_heads):
    config = AutoConfig.for_model(
        "llama", num_attention_heads=8, num_key_value_heads=kv_heads, hidden_size=64
    )
    small = packed.tiny_config(config)
    assert (small.num_attention_heads, small.num_key_value_heads) == (4, tiny_heads)
