"""Packed rows, and the loss over the head, against documents apart and torch's cross-entropy."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoConfig, AutoModelForCausalLM

from detalbert.errors import UserError
from lm import packed
from lm.loss import head_loss
from lm.packed import (
    NO_TARGET,
    check_family,
    count_targets,
    empty_row,
    hidden_states,
    pack,
    tiny_config,
)
from tests.lm.ranks import SHAPES, tiny

PIECES = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=5), min_size=1, max_size=4)


@given(PIECES.filter(lambda windows: all(sum(w) > 1 for w in windows)))
def test_a_row_holds_each_piece_and_what_comes_next_in_it(windows: list[list[int]]) -> None:
    tokens = [torch.arange(100 * i, 100 * i + sum(w)) for i, w in enumerate(windows)]
    row = pack([(t, torch.tensor(w)) for t, w in zip(tokens, windows, strict=True)])
    inputs, targets, positions = [], [], []
    for t, w in zip(tokens, windows, strict=True):
        pieces = t.split(w)
        for i, piece in enumerate(pieces):
            last = i == len(pieces) - 1
            inputs += [piece[:-1] if last else piece]
            targets += piece[1:].tolist() + [NO_TARGET] * (not last)
    inputs = [piece for piece in inputs if len(piece)]
    positions = [n for piece in inputs for n in range(len(piece))]
    bounds = row["cu_seqlens"].tolist()
    assert row["input_ids"].tolist() == torch.cat(inputs).tolist()
    assert row["targets"].tolist() == targets and row["position_ids"].tolist() == positions
    assert bounds == [0, *torch.tensor([len(piece) for piece in inputs]).cumsum(0).tolist()]
    assert row["max_length"] == max(map(len, inputs)) and row["cu_seqlens"].dtype is torch.int32
    assert count_targets(row) == sum(sum(w) - len(w) for w in windows)


def test_pieces_that_do_not_fill_their_window_are_refused() -> None:
    for lengths in ([1, 3], [0, 2, 3]):
        with pytest.raises(ValueError, match="pieces of .* tokens in a window of 5"):
            pack([(torch.arange(5), torch.tensor(lengths))])


def test_an_empty_row_adds_nothing() -> None:
    row = empty_row()
    hidden = torch.ones(1, 4, requires_grad=True)
    loss, correct = head_loss(hidden, torch.ones(5, 4), row["targets"])
    loss.backward()
    assert loss == 0 and correct == 0 and not hidden.grad.any() and count_targets(row) == 0


@pytest.mark.parametrize("family", [*SHAPES, "opt", "qwen3", "olmo2"])
def test_families_that_read_packed_rows_rightly_are_taken(family: str) -> None:
    config = tiny(family) if family in SHAPES else AutoConfig.for_model(family)
    check_family(config)


@pytest.mark.parametrize("family", [*SHAPES, "opt"])
def test_a_planted_leak_is_found(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def leak(_: torch.Tensor, tokens: int, __: int) -> Any:
        return bounds(torch.tensor([0, tokens], dtype=torch.int32), tokens, tokens)

    bounds = packed.Bounds
    monkeypatch.setattr(packed, "Bounds", leak)
    config = tiny(family) if family in SHAPES else AutoConfig.for_model(family)
    with pytest.raises(UserError, match=f"{family} reads packed rows wrongly.*off by [01]"):
        check_family(config)


@pytest.mark.parametrize(
    ("family", "said"),
    [
        ("bloom", "bloom reads packed rows wrongly"),
        ("phi", "phi reads packed rows wrongly"),  # a bias in its head
        ("cohere", "cohere reads packed rows wrongly"),  # a scale after its head
        ("bert", "bert reads packed rows wrongly"),
        ("mistral", "MistralAttention uses sliding_window"),
        ("gptj", "gptj does not read packed rows"),
    ],
)
def test_families_that_do_not_are_refused(family: str, said: str) -> None:
    before = torch.random.get_rng_state()
    with pytest.raises(UserError, match=f"hyperparameters.model: {said}.*(Llama|llama) or"):
        check_family(AutoConfig.for_model(family))
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("family", SHAPES)
def test_packed_hidden_states_are_those_of_documents_apart(family: str) -> None:
    config = tiny_config(tiny(family))
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="packed_causal").eval()
    ids, lengths = torch.randint(64, (41,)), [1, 20, 7, 13]
    row = pack([(ids, torch.tensor(lengths))])
    model.config._attn_implementation = "eager"
    apart = [
        model.base_model(piece[None]).last_hidden_state[0]
        for piece in ids[:-1].split([1, 20, 7, 12])
    ]
    model.config._attn_implementation = "packed_causal"
    torch.testing.assert_close(hidden_states(model, row), torch.cat(apart), atol=1e-5, rtol=1e-5)


@given(
    tokens=st.integers(1, 40),
    chunk=st.integers(1, 41),
    seed=st.integers(0, 99),
    none=st.floats(0, 1),
)
def test_loss_and_gradients_are_those_of_the_whole(
    tokens: int, chunk: int, seed: int, none: float
) -> None:
    torch.manual_seed(seed)
    hidden, weight = torch.randn(tokens, 16), torch.randn(57, 16)
    targets = torch.randint(57, (tokens,))
    targets[torch.rand(tokens) < none] = NO_TARGET
    results = []
    for ours in (True, False):
        h, w = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
        logits = h @ w.t()
        if ours:
            loss, correct = head_loss(h, w, targets, chunk=chunk)
            assert correct == ((logits.argmax(1) == targets) & (targets != NO_TARGET)).sum()
        else:
            loss = F.cross_entropy(logits, targets, reduction="sum")
        (loss * 0.3).backward()
        results.append((loss.detach(), h.grad, w.grad))
    for a, b in zip(*results, strict=True):
        assert (a - b).norm() <= 1e-6 * max(1.0, float(b.norm()))


class _Largest(TorchDispatchMode):
    """The most numbers that one result has."""

    numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor):
            self.numbers = max(self.numbers, out.numel())
        return out


def test_logits_are_never_whole() -> None:
    hidden = torch.randn(512, 4, requires_grad=True)
    weight = torch.randn(1000, 4, requires_grad=True)
    with _Largest() as seen:
        head_loss(hidden, weight, torch.zeros(512, dtype=torch.long), chunk=32)[0].backward()
    assert seen.numbers == 32 * 1000  # and not 512 * 1000


def test_half_precision_sums_in_float32() -> None:
    torch.manual_seed(0)
    hidden, weight = torch.randn(300, 32).bfloat16(), torch.randn(57, 32).bfloat16()
    hidden.requires_grad_(), weight.requires_grad_()
    targets = torch.randint(57, (300,))
    loss, _ = head_loss(hidden, weight, targets, chunk=7)
    loss.backward()
    exact_h, exact_w = hidden.detach().double(), weight.detach().double()
    exact_h.requires_grad_(), exact_w.requires_grad_()
    exact = F.cross_entropy(exact_h @ exact_w.t(), targets, reduction="sum")
    exact.backward()
    assert loss.dtype is torch.float32 and abs(float(loss.detach() / exact.detach()) - 1) < 2e-3
    assert (weight.grad.double() - exact_w.grad).norm() < 5e-3 * exact_w.grad.norm()
