"""Packed attention against the library's padded forward."""

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForQuestionAnswering

from detalbert.engine import attention
from detalbert.engine.evaluation import row_losses
from detalbert.engine.rows import SquadRow
from detalbert.errors import UserError
from tests.fakes.encoders import LENGTHS, MODELS, SHAPE, make_model, make_row


def padded_losses(model: nn.Module, row: SquadRow, lengths: list[int]) -> Tensor:
    """The library's forward on a padded batch with its attention mask; per-window losses [n]."""

    def grid(flat: Tensor) -> Tensor:
        return torch.nn.utils.rnn.pad_sequence(flat.split(lengths), batch_first=True)

    batch = {
        "input_ids": grid(row["input_ids"]),
        "attention_mask": grid(torch.ones_like(row["input_ids"])),
    }
    batch["input_ids"][batch["attention_mask"] == 0] = model.config.pad_token_id
    if getattr(model.config, "type_vocab_size", 0) > 1:
        batch["token_type_ids"] = grid(row["token_type_ids"])
    output = model(**batch)
    losses = []
    for i, n in enumerate(lengths):
        start = F.cross_entropy(output.start_logits[i, :n], row["start_positions"][i])
        end = F.cross_entropy(output.end_logits[i, :n], row["end_positions"][i])
        losses.append((start + end) / 2)
    return torch.stack(losses)


def packed_losses(model: nn.Module, row: SquadRow) -> Tensor:
    return row_losses(row, *attention.answer_logits(model, row))


def losses_and_gradients(model: nn.Module, losses: Tensor) -> tuple[Tensor, Tensor]:
    model.zero_grad()
    losses.mean().backward()
    gradients = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
    return losses.detach(), torch.cat(gradients)


def relative_distance(ours: tuple[Tensor, ...], reference: tuple[Tensor, ...]) -> float:
    return max(float((a - b).norm() / b.norm()) for a, b in zip(ours, reference, strict=True))


def parity(
    name: str, row: SquadRow, implementation: str = "eager", lengths: list[int] = LENGTHS
) -> float:
    """How far loss and gradients of packed `row` are from the padded forward of make_row's row."""
    model, library = make_model(name), make_model(name, implementation)
    ours = losses_and_gradients(model, packed_losses(model, row))
    reference = padded_losses(library, make_row(lengths), lengths)
    return relative_distance(ours, losses_and_gradients(library, reference))


@pytest.fixture(params=["windows", "grid"])
def both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Window after window (what a CPU does), and the padded grid (what a GPU does)."""
    padded = request.param == "grid"
    monkeypatch.setattr(attention, "Layout", functools.partial(attention.Layout, padded=padded))


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("name", MODELS)
def test_loss_and_gradients_are_those_of_the_padded_forward(
    name: str, implementation: str, both_ways: None
) -> None:
    assert parity(name, make_row(LENGTHS), implementation) < 1e-5


@pytest.mark.parametrize("lengths", [[23], [12, 12, 12]])
def test_parity_holds_for_one_window_and_for_equal_ones(
    lengths: list[int], both_ways: None
) -> None:
    assert parity("albert", make_row(lengths), lengths=lengths) < 1e-5


@pytest.mark.parametrize("name", ["albert", "bert", "roberta"])
def test_parity_fails_when_windows_see_each_other(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = torch.tensor([0, sum(LENGTHS)], dtype=torch.int32)

    def leak(cu_seqlens: Tensor, tokens: int, max_length: int) -> attention.Layout:
        return layout(whole, tokens, tokens)

    layout = attention.Layout
    monkeypatch.setattr(attention, "Layout", leak)
    assert parity(name, make_row(LENGTHS)) > 1e-2


@pytest.mark.parametrize("name", ["albert", "bert", "roberta"])
def test_parity_fails_when_positions_run_on(name: str) -> None:
    row = make_row(LENGTHS)
    row["position_ids"] = torch.arange(sum(LENGTHS))
    assert parity(name, row) > 1e-2


@pytest.mark.parametrize("name", ["albert", "bert", "electra"])
def test_parity_fails_when_segments_are_lost(name: str) -> None:
    row = make_row(LENGTHS)
    row["token_type_ids"] = torch.zeros_like(row["token_type_ids"])
    assert parity(name, row) > 1e-2


@pytest.mark.parametrize("padded", [False, True])
def test_attention_is_softmax_of_scaled_scores_within_each_window(padded: bool) -> None:
    lengths, heads, size = [3, 1, 4], 2, 8
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 1, heads, sum(lengths), size)
    layout = attention.Layout(make_row(lengths)["cu_seqlens"], sum(lengths), 4, padded=padded)
    out, weights = attention.packed_attention(
        torch.nn.Module(), query, key, value, None, scaling=0.3, packed_layout=layout
    )
    parts = zip(*(x[0].split(lengths, dim=1) for x in (query, key, value)), strict=True)
    expected = [(q @ k.mT * 0.3).softmax(-1) @ v for q, k, v in parts]
    assert weights is None
    torch.testing.assert_close(out, torch.cat(expected, dim=1).transpose(0, 1)[None])


@pytest.mark.parametrize("padded", [False, True])
def test_attention_drops_weights_out(padded: bool) -> None:
    lengths = [200, 300]
    layout = attention.Layout(make_row(lengths)["cu_seqlens"], 500, 300, padded=padded)
    query, value = torch.zeros(1, 1, 500, 4), torch.ones(1, 1, 500, 4)
    torch.manual_seed(0)
    out, _ = attention.packed_attention(
        torch.nn.Module(), query, query, value, None, dropout=0.5, packed_layout=layout
    )
    x = torch.randn(3, 1, 2, 5, 8)
    exact = F.scaled_dot_product_attention(*x)
    torch.testing.assert_close(attention._with_dropout(*x, None, 0.0, False), exact)
    # Every weight is 1 / length; half of them are dropped and the rest doubled, so 1 on average.
    assert out.std() > 0.01
    assert out.mean().item() == pytest.approx(1.0, abs=0.02)


def test_a_layout_that_cannot_hold_its_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="8 tokens do not fit 2 windows of at most 3"):
        attention.Layout(torch.tensor([0, 4, 8], dtype=torch.int32), 8, 3)


def test_an_ordinary_call_of_a_packed_model_is_refused() -> None:
    model, ids = make_model(), torch.tensor([[2, 7, 3]])
    with pytest.raises(ValueError, match=r"attention\.answer_logits"):
        model(input_ids=ids)
    with pytest.raises(ValueError, match="attention_mask"):
        model(input_ids=ids, attention_mask=torch.ones_like(ids))


def test_models_that_would_attend_across_windows_are_refused() -> None:
    row = make_row(LENGTHS)
    with pytest.raises(UserError, match=r"hyperparameters\.model: Albert.*'sdpa'"):
        attention.answer_logits(make_model("albert", "sdpa"), row)
    own_code = ("mpnet", {})  # would ignore the layout
    local = ("modernbert", {f"{name}_token_id": 0 for name in ("pad", "bos", "eos", "cls", "sep")})
    causal = ("gpt2", {"n_embd": 32, "n_layer": 1, "n_head": 4})
    for name, keys in (own_code, local, causal):
        config = AutoConfig.for_model(name, **{**SHAPE, **keys})
        model = AutoModelForQuestionAnswering.from_config(
            config, attn_implementation=attention.PACKED
        )
        with pytest.raises(UserError, match=r"hyperparameters\.model: .*use an encoder"):
            attention.answer_logits(model, row)


def test_the_call_goes_through_the_ddp_wrapper(tmp_path: Path) -> None:
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        wrapped = torch.nn.parallel.DistributedDataParallel(make_model("roberta"))
        forwards = []
        wrapped.register_forward_pre_hook(lambda *_: forwards.append(1))
        row, bare = make_row(LENGTHS), make_model("roberta")
        ours = losses_and_gradients(wrapped, packed_losses(wrapped, row))
    finally:
        torch.distributed.destroy_process_group()
    assert forwards == [1]
    assert relative_distance(ours, losses_and_gradients(bare, packed_losses(bare, row))) < 1e-6


def test_nothing_is_read_back_from_the_device() -> None:
    # A meta tensor has no values: any .item(), .tolist() or bool() of one raises.
    model = make_model().to("meta")
    row = {k: v.to("meta") if k != "max_length" else v for k, v in make_row(LENGTHS).items()}
    start, end = attention.answer_logits(model, row)
    losses = row_losses(row, start, end)
    losses.mean().backward()
    assert losses.shape == (len(LENGTHS),)
    assert start.shape == end.shape == (sum(LENGTHS),)


GPU = torch.device("cuda")  # no tensor is there: a stand-in for its name and its capability


@pytest.mark.parametrize(("capability", "has"), [((7, 5), False), ((8, 0), True), ((9, 0), True)])
def test_the_kernel_is_for_ampere_and_newer(
    capability: tuple[int, int], has: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(attention, "varlen_attn", object())
    assert attention.has_kernel(GPU) == has and not attention.has_kernel(torch.device("cpu"))
    monkeypatch.setattr(attention, "varlen_attn", None)  # before torch 2.10
    assert not attention.has_kernel(GPU)


def test_a_layout_knows_its_way_and_its_bound() -> None:
    bounds = {n: attention.Layout(torch.tensor([0, n]), n, n).bound for n in (1, 512, 513, 1024)}
    assert bounds == {1: 512, 512: 512, 513: 1024, 1024: 1024}
    for device, several in (("cpu", False), ("meta", True)):
        one, two = (torch.tensor(x, device=device) for x in ([0, 4], [0, 4, 8]))
        assert attention.Layout(two, 8, 4).padded == several
        assert not attention.Layout(one, 4, 4).padded
        assert attention.Layout(two, 8, 4, padded=not several).padded != several
    assert attention.Layout(torch.tensor([0, 4], device="meta"), 4, 4).lengths == [4]


@pytest.mark.parametrize(
    ("dtype", "size", "dropout", "by_kernel"),
    [
        (torch.bfloat16, 256, 0.0, True),
        (torch.float16, 8, 0.0, True),
        (torch.float32, 8, 0.0, False),
        (torch.bfloat16, 264, 0.0, False),
        (torch.bfloat16, 8, 0.1, False),
    ],
)
def test_the_kernel_runs_what_it_can(
    dtype: torch.dtype, size: int, dropout: float, by_kernel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def kernel(query: Tensor, *given: Any, scale: float) -> Tensor:
        calls.append((query.shape, *(x.shape for x in given[:2]), *given[4:], scale))
        assert given[2] is given[3] is layout.cu_seqlens
        return query

    monkeypatch.setattr(attention, "varlen_attn", kernel)
    layout = attention.Layout(torch.tensor([0, 2, 5], dtype=torch.int32), 5, 3)
    layout.kernel = True
    x = torch.ones(1, 2, 5, size, dtype=dtype)
    out, _ = attention.packed_attention(
        nn.Module(), x, x, x, None, dropout=dropout, scaling=0.3, packed_layout=layout
    )
    flat = (5, 2, size)
    assert out.shape == (1, *flat) and calls == [(flat, flat, flat, 512, 512, 0.3)] * by_kernel
    layout.kernel = False
    attention.packed_attention(nn.Module(), x, x, x, None, packed_layout=layout)
    assert len(calls) == by_kernel


@pytest.mark.parametrize("more", ["sliding_window", "position_bias", "softcap", "is_causal"])
def test_attention_that_is_more_than_a_softmax_is_refused(more: str) -> None:
    layout, x = attention.Layout(torch.tensor([0, 5]), 5, 5), torch.ones(1, 2, 5, 8)
    module = nn.Module()
    module.is_causal = more == "is_causal"
    given = {} if module.is_causal else {more: 4}
    with pytest.raises(UserError, match=f"Module uses {more}, which packed rows do not support"):
        attention.packed_attention(module, x, x, x, None, packed_layout=layout, **given)
    with pytest.raises(ValueError, match="takes no mask"):
        attention.packed_attention(module, x, x, x, torch.ones(5), packed_layout=layout)
