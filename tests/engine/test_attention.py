"""Packed attention against its definition and the library's forward, window by window."""

import functools
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForQuestionAnswering

from detalbert.engine import attention
from detalbert.engine import kernel as flash
from detalbert.engine.evaluation import row_losses
from detalbert.engine.rows import SquadRow
from detalbert.errors import UserError
from tests.fakes.encoders import LENGTHS, MODELS, SHAPE, make_model, make_row


def library_losses(model: nn.Module, row: SquadRow, lengths: list[int]) -> Tensor:
    parts = zip(row["input_ids"].split(lengths), row["token_type_ids"].split(lengths), strict=True)
    losses = []
    for n, (ids, segments) in enumerate(parts):
        batch = {f"{end}_positions": row[f"{end}_positions"][n, None] for end in ("start", "end")}
        if getattr(model.config, "type_vocab_size", 0) > 1:
            batch["token_type_ids"] = segments[None]
        losses.append(model(input_ids=ids[None], **batch).loss)
    return torch.stack(losses)


def parity(name: str, row: SquadRow, lengths: list[int] = LENGTHS) -> float:
    """How far losses of packed `row`, and the gradients of their mean, are from the library's."""
    model, library = make_model(name), make_model(name, "eager")
    losses, sides = row_losses(row, *attention.answer_logits(model, row)), []
    wanted = library_losses(library, make_row(lengths), lengths)
    for each, found in ((model, losses), (library, wanted)):
        found.mean().backward()
        gradients = [p.grad.flatten() for p in each.parameters() if p.grad is not None]
        sides.append((found.detach(), torch.cat(gradients)))
    return max(float((a - b).norm() / b.norm()) for a, b in zip(*sides, strict=True))


@pytest.mark.parametrize("padded", [False, True])  # what a CPU does, and what a GPU does
@pytest.mark.parametrize(
    "name, lengths",
    [*((name, LENGTHS) for name in MODELS), ("albert", [23]), ("albert", [12, 12, 12])],
)
def test_loss_and_gradients_are_those_of_the_library(
    name: str, lengths: list[int], padded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        attention, "RowBounds", functools.partial(attention.RowBounds, padded=padded)
    )
    assert parity(name, make_row(lengths), lengths) < 1e-5


def test_losses_are_fp32_and_do_not_depend_on_the_grid() -> None:
    row, draw = make_row(LENGTHS), torch.Generator().manual_seed(1)
    logits = torch.randn(2, sum(LENGTHS), generator=draw).mul(8).bfloat16().requires_grad_()
    narrow = row_losses(row, *logits)
    wide = row_losses({**row, "max_length": sum(LENGTHS)}, *logits)
    assert wide.dtype == torch.float32
    torch.testing.assert_close(wide, narrow, rtol=1e-6, atol=0)
    wide.sum().backward()
    assert logits.grad.isfinite().all() and logits.grad.abs().sum() > 0


CAUSAL = {False: attention.packed_attention, True: attention.causal_attention}


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("causal, kv_heads", [(False, 4), (True, 4), (True, 2), (True, 1)])
def test_attention_is_softmax_of_scaled_scores_within_each_window(
    causal: bool, kv_heads: int, padded: bool
) -> None:
    lengths, module = [3, 1, 4], nn.Module()
    torch.manual_seed(0)
    given = [torch.randn(1, heads, 8, 8) for heads in (4, kv_heads, kv_heads)]
    module.is_causal = causal
    layout = attention.RowBounds(make_row(lengths)["cu_seqlens"], 8, 4, padded=padded)
    out, weights = CAUSAL[causal](module, *given, None, scaling=0.3, packed_layout=layout)
    wide = (x[0].repeat_interleave(4 // x.shape[1], dim=0).split(lengths, dim=1) for x in given)
    parts = []
    for q, k, v in zip(*wide, strict=True):
        scores = q @ k.mT * 0.3
        hidden = torch.ones_like(scores).triu(1).bool() & causal
        parts.append(scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v)
    assert weights is None
    torch.testing.assert_close(out, torch.cat(parts, dim=1).transpose(0, 1)[None])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_dropout_keeps_the_mean_of_attention_without(padded: bool, causal: bool) -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 2, 12, 8)
    layout = attention.RowBounds(make_row([5, 7])["cu_seqlens"], 12, 7, padded=padded)

    def run(dropout: float) -> Tensor:
        return CAUSAL[causal](nn.Module(), q, k, v, None, dropout, 0.3, packed_layout=layout)[0]

    outs = torch.stack([run(0.1) for _ in range(1000)])
    torch.testing.assert_close(outs.mean(0), run(0.0), atol=0.075, rtol=0)
    assert outs.std(0).mean() > 0.1
    torch.testing.assert_close(run(1e-6), run(0.0))


def test_a_call_that_would_mix_windows_is_refused() -> None:
    model, ids = make_model(), torch.tensor([[2, 7, 3]])
    with pytest.raises(ValueError, match=r"attention\.answer_logits"):
        model(input_ids=ids)
    with pytest.raises(ValueError, match="attention_mask"):
        model(input_ids=ids, attention_mask=torch.ones_like(ids))
    with pytest.raises(ValueError, match="8 tokens do not fit 2 windows of at most 3"):
        attention.RowBounds(torch.tensor([0, 4, 8], dtype=torch.int32), 8, 3)
    row = make_row(LENGTHS)
    with pytest.raises(UserError, match=r"hyperparameters\.model: Albert.*'sdpa'"):
        attention.answer_logits(make_model("albert", "sdpa"), row)
    make = AutoModelForQuestionAnswering.from_config
    mpnet = AutoConfig.for_model("mpnet", **SHAPE)  # its own code would ignore the layout
    with pytest.raises(UserError, match=r"hyperparameters\.model: .*use an encoder"):
        attention.answer_logits(make(mpnet, attn_implementation=attention.PACKED), row)


@pytest.mark.parametrize("padded", [False, True])
def test_local_attention_reaches_less_than_its_window(padded: bool) -> None:
    lengths, local = [6, 3], 3
    draw = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 1, 2, 9, 8, generator=draw)
    layout = attention.RowBounds(make_row(lengths)["cu_seqlens"], 9, 6, padded=padded)
    how = {"packed_layout": layout, "sliding_window": local}
    found, _ = attention.packed_attention(nn.Module(), q, k, v, None, **how)
    window = torch.tensor([0] * 6 + [1] * 3)
    place = torch.tensor([*range(6), *range(3)])
    seen = window[:, None] == window
    seen &= (place[:, None] - place).abs() < local
    scores = (q @ k.mT / 8**0.5).masked_fill(~seen, -torch.inf)
    wanted = (scores.softmax(-1) @ v).transpose(1, 2)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)
    torch.manual_seed(0)
    attend = functools.partial(attention.packed_attention, nn.Module(), q, k, v, None, 0.1, **how)
    outs = [attend()[0] for _ in range(999)]
    torch.testing.assert_close(torch.stack(outs).mean(0), wanted, rtol=0, atol=0.1)


@pytest.mark.parametrize("causal, use", [(False, "an encoder"), (True, "a model such as GPT-2")])
def test_attention_that_is_more_than_a_softmax_is_refused(causal: bool, use: str) -> None:
    layout, module = attention.RowBounds(torch.tensor([0, 5]), 5, 5), nn.Module()
    attend = functools.partial(CAUSAL[causal], module, *[torch.ones(1, 2, 5, 8)] * 3)
    for more in ("position_bias", "softcap", *(["sliding_window"] * causal)):
        said = f"Module uses {more}, which packed rows do not support; use {use}"
        with pytest.raises(UserError, match=said):
            attend(None, packed_layout=layout, **{more: 4})
    module.is_causal = True
    if not causal:
        with pytest.raises(UserError, match="Module uses is_causal"):
            attend(None, packed_layout=layout)


def test_a_layout_knows_its_way_and_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = torch.device("cuda")
    monkeypatch.setattr(flash, "varlen_attn", object())
    for capability, has in (((7, 5), False), ((8, 0), True), ((9, 0), True)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, is_=capability: is_)
        assert flash.has_kernel(gpu) == has and not flash.has_kernel(torch.device("cpu"))
    monkeypatch.setattr(flash, "varlen_attn", None)  # before torch 2.10
    assert not flash.has_kernel(gpu)
    bounds = {n: attention.RowBounds(torch.tensor([0, n]), n, n).bound for n in (1, 512, 513, 1024)}
    assert bounds == {1: 512, 512: 512, 513: 1024, 1024: 1024}
    for device, several in (("cpu", False), ("meta", True)):
        one, two = (torch.tensor(x, device=device) for x in ([0, 4], [0, 4, 8]))
        assert attention.RowBounds(two, 8, 4).padded == several
        assert not attention.RowBounds(one, 4, 4).padded
        assert attention.RowBounds(two, 8, 4, padded=not several).padded != several
    assert attention.RowBounds(torch.tensor([0, 4], device="meta"), 4, 4).lengths == [4]


# Of torch 2.10, 2.11 and 2.12: what follows query, key, value, their bounds and lengths.
OPTIONS = {
    10: {"is_causal"},
    11: {"scale", "window_size"},
    12: {"scale", "window_size", "enable_gqa"},
}


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> tuple[attention.RowBounds, list[Any]]:
    """A layout that has one, and how it is called: shapes, then the options. It is torch 2.12's."""

    def varlen_attn(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        cu_seq_q: Tensor,
        cu_seq_k: Tensor,
        max_q: int,
        max_k: int,
        **options: Any,
    ) -> Tensor:
        assert cu_seq_q is cu_seq_k is layout.cu_seqlens
        assert max_q == max_k == 512
        calls.append((query.shape, key.shape, value.shape, options))
        return query + 2 * key + 4 * value

    calls: list[Any] = []
    monkeypatch.setattr(flash, "varlen_attn", varlen_attn)
    monkeypatch.setattr(flash, "OPTIONS", OPTIONS[12])
    layout = attention.RowBounds(torch.tensor([0, 2, 5], dtype=torch.int32), 5, 3)
    layout.kernel = True
    return layout, calls


KERNEL_INPUTS = [("bfloat16", 256, 0.0, True), ("float16", 8, 0.0, True)]
KERNEL_INPUTS += [("float32", 8, 0.0, False), ("bfloat16", 264, 0.0, False)]
KERNEL_INPUTS += [("bfloat16", 8, 0.1, False)]


@pytest.mark.parametrize("dtype, size, dropout, by_kernel", KERNEL_INPUTS)
def test_the_kernel_runs_what_it_can(
    dtype: str, size: int, dropout: float, by_kernel: bool, kernel: Any
) -> None:
    layout, calls = kernel
    qkv = torch.randint(2, (3, 1, 2, 5, size)).to(getattr(torch, dtype))
    run, flat = functools.partial(attention.packed_attention, nn.Module(), *qkv, None), (5, 2, size)
    out, _ = run(dropout=dropout, scaling=0.3, packed_layout=layout)
    assert out.shape == (1, *flat)
    if by_kernel:
        assert torch.equal(out, (qkv[0] + 2 * qkv[1] + 4 * qkv[2]).transpose(1, 2))
    options = {"scale": 0.3, "window_size": (1 << 30, 1 << 30), "enable_gqa": False}
    assert calls == [(flat, flat, flat, options)] * by_kernel
    layout.kernel = False
    run(packed_layout=layout)
    assert len(calls) == by_kernel


@pytest.mark.parametrize("version", OPTIONS)
@pytest.mark.parametrize("kv_heads", [2, 1])
def test_the_kernel_is_told_that_it_is_causal(
    version: int, kv_heads: int, kernel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout, calls = kernel
    monkeypatch.setattr(flash, "OPTIONS", OPTIONS[version])
    grouped = kv_heads == 1 and version == 12  # older ones: as many heads of keys as of queries
    values = {"is_causal": True, "scale": None, "window_size": (-1, 0), "enable_gqa": grouped}
    q, k = (torch.ones(1, heads, 5, 8, dtype=torch.bfloat16) for heads in (2, kv_heads))
    attention.causal_attention(nn.Module(), q, k, k, None, packed_layout=layout)
    ((_, keys, _, options),) = calls
    assert keys == (5, 1 if grouped else 2, 8)
    assert options == {name: values[name] for name in OPTIONS[version]}


@pytest.mark.parametrize("version", OPTIONS)
def test_the_kernel_is_asked_for_nothing_that_its_version_lacks(
    version: int, kernel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout, calls = kernel
    monkeypatch.setattr(flash, "OPTIONS", OPTIONS[version])
    q = torch.ones(1, 2, 5, 16, dtype=torch.bfloat16)
    attend = functools.partial(attention.packed_attention, nn.Module(), q, q, q, None)
    for scaling in (None, 16**-0.5):  # the default of every version
        attend(packed_layout=layout, scaling=scaling)
    assert len(calls) == 2
    for options in ({"scaling": 0.3}, {"sliding_window": 2}):
        out, _ = attend(packed_layout=layout, **options)
        assert out.shape == (1, 5, 2, 16)
    assert len(calls) == (2 if version == 10 else 4)
    assert all(set(options) == OPTIONS[version] for *_, options in calls)
    if version > 10:
        assert calls[-1][-1]["window_size"] == (1, 1)
