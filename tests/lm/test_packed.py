"""Packed rows, and the loss over the head, against documents apart and torch's cross-entropy."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoConfig, PretrainedConfig

from detalbert.errors import UserError
from lm import packed
from lm.loss import head_loss
from lm.packed import NO_TARGET, check_family, count_targets, pack
from tests.lm.ranks import SHAPES, tiny

PIECES = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=5), min_size=1, max_size=4)


@given(PIECES.filter(lambda windows: all(sum(w) > 1 for w in windows)))
def test_a_row_holds_each_piece_and_what_comes_next_in_it(windows):
    tokens = [torch.arange(100 * i, 100 * i + sum(w)) for i, w in enumerate(windows)]
    row = pack([(t, torch.tensor(w)) for t, w in zip(tokens, windows, strict=True)])
    inputs, targets = [], []
    for t, w in zip(tokens, windows, strict=True):
        *others, last = t.split(w)
        inputs += [*others, last[:-1]]
        targets += [token for piece in others for token in [*piece[1:].tolist(), NO_TARGET]]
        targets += last[1:].tolist()
    inputs = [piece for piece in inputs if len(piece)]
    positions = [n for piece in inputs for n in range(len(piece))]
    bounds = row["cu_seqlens"].tolist()
    assert row["input_ids"].tolist() == torch.cat(inputs).tolist()
    assert row["targets"].tolist() == targets and row["position_ids"].tolist() == positions
    assert bounds == [0, *torch.tensor([len(piece) for piece in inputs]).cumsum(0).tolist()]
    assert row["max_length"] == max(map(len, inputs)) and row["cu_seqlens"].dtype is torch.int32
    assert count_targets(row) == sum(sum(w) - len(w) for w in windows)


def config_of(family: str) -> PretrainedConfig:
    return tiny(family) if family in SHAPES else AutoConfig.for_model(family)


@pytest.mark.parametrize("family", [*SHAPES, "opt", "qwen3", "olmo2"])
def test_families_that_read_packed_rows_rightly_are_taken(family):
    check_family(config_of(family))


@pytest.mark.parametrize("family", [*SHAPES, "opt"])
def test_a_planted_leak_is_found(family, monkeypatch):
    bounds = packed.RowBounds
    monkeypatch.setattr(packed, "RowBounds", lambda _, n, __: bounds(torch.IntTensor([0, n]), n, n))
    with pytest.raises(UserError, match=f"{family} reads packed rows wrongly.*off by [01]"):
        check_family(config_of(family))


# phi has a bias in its head, cohere a scale after it
REFUSED = [(name, "reads packed rows wrongly") for name in ("bloom", "phi", "cohere", "bert")]
REFUSED += [("mistral", "uses sliding_window"), ("gptj", "does not read packed rows")]


@pytest.mark.parametrize("family, said", REFUSED)
def test_families_that_do_not_are_refused(family, said):
    before = torch.random.get_rng_state()
    with pytest.raises(UserError, match=f"model: .*{said}.*(Llama|llama) or"):
        check_family(AutoConfig.for_model(family))
    assert torch.equal(torch.random.get_rng_state(), before)


@given(st.integers(1, 40), st.integers(1, 41), st.integers(0, 99), st.floats(0, 1))
def test_loss_and_gradients_are_those_of_the_whole(tokens, chunk, seed, none):
    torch.manual_seed(seed)
    hidden, weight = torch.randn(tokens, 16), torch.randn(57, 16)
    targets = torch.randint(57, (tokens,))
    targets[torch.rand(tokens) < none] = NO_TARGET
    results = []
    for ours in (True, False):
        h, w = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
        logits = h @ w.t()
        loss = F.cross_entropy(logits, targets, reduction="sum")
        if ours:
            loss, correct = head_loss(h, w, targets, chunk=chunk)
            assert correct == ((logits.argmax(1) == targets) & (targets != NO_TARGET)).sum()
        (loss * 0.3).backward()
        results.append((loss.detach(), h.grad, w.grad))
    for a, b in zip(*results, strict=True):
        assert (a - b).norm() <= 1e-6 * max(1.0, float(b.norm()))


class _Largest(TorchDispatchMode):
    numbers = 0  # the most of one result

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.numbers = max(self.numbers, getattr(out, "numel", int)())
        return out


def test_logits_are_never_whole_and_half_precision_sums_in_float32():
    hidden = torch.randn(512, 4, requires_grad=True)
    weight = torch.randn(1000, 4, requires_grad=True)
    with _Largest() as seen:
        head_loss(hidden, weight, torch.zeros(512, dtype=torch.long), chunk=32)[0].backward()
    assert seen.numbers == 32 * 1000  # and not 512 * 1000
    torch.manual_seed(0)
    hidden, weight = (torch.randn(n, 32).bfloat16().requires_grad_() for n in (300, 57))
    targets = torch.randint(57, (300,))
    loss, _ = head_loss(hidden, weight, targets, chunk=7)
    loss.backward()
    exact_h, exact_w = (x.detach().double().requires_grad_() for x in (hidden, weight))
    exact = F.cross_entropy(exact_h @ exact_w.t(), targets, reduction="sum")
    exact.backward()
    assert loss.dtype is torch.float32 and float(loss.detach()) == pytest.approx(
        float(exact), rel=2e-3
    )
    assert (weight.grad.double() - exact_w.grad).norm() < 5e-3 * exact_w.grad.norm()
