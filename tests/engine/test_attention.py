"""Packed attention against its definition and the library's forward, window by window."""

import functools

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForQuestionAnswering

from detalbert.engine import attention, inputs
from detalbert.engine.attention import RowBounds
from detalbert.engine.forward import row_losses
from detalbert.errors import UserError
from tests.fakes.encoders import LENGTHS, MODELS, SHAPE, make_model, make_row

CAUSAL = {False: attention.packed_attention, True: attention.causal_attention}


def bounds_of(lengths, padded):
    return RowBounds(make_row(lengths)["cu_seqlens"], sum(lengths), max(lengths), padded=padded)


def library_losses(model, row, lengths):
    """The loss of each window, read by itself."""
    has_types = getattr(model.config, "type_vocab_size", 0) > 1
    ids = row["input_ids"].split(lengths)
    types = row["token_type_ids"].split(lengths)
    losses = []
    for number in range(len(lengths)):
        batch = {
            "input_ids": ids[number][None],
            "start_positions": row["start_positions"][number, None],
            "end_positions": row["end_positions"][number, None],
        }
        if has_types:
            batch["token_type_ids"] = types[number][None]
        losses.append(model(**batch).loss)
    return torch.stack(losses)


def gradients_of(model, losses):
    """The gradients of the mean loss, end to end."""
    losses.mean().backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    return torch.cat([gradient.flatten() for gradient in gradients if gradient is not None])


def relative_error(tensor, expected):
    difference = tensor.detach() - expected.detach()
    return float(difference.norm() / expected.detach().norm())


@pytest.mark.parametrize("padded", [False, True])  # what a CPU does, and what a GPU does
@pytest.mark.parametrize(
    ("name", "lengths"),
    [*((name, LENGTHS) for name in MODELS), ("albert", [23]), ("albert", [12, 12, 12])],
)
def test_loss_and_gradients_are_those_of_the_library(name, lengths, padded, monkeypatch):
    monkeypatch.setattr(inputs, "RowBounds", functools.partial(RowBounds, padded=padded))
    model = make_model(name)
    library = make_model(name, "eager")
    row = make_row(lengths)

    start_logits, end_logits = inputs.read_spans(model, row)
    losses = row_losses(row, start_logits, end_logits)

    expected = library_losses(library, row, lengths)
    assert relative_error(losses, expected) < 1e-5
    gradients = gradients_of(model, losses)
    assert relative_error(gradients, gradients_of(library, expected)) < 1e-5


def test_losses_are_fp32_and_do_not_depend_on_the_grid():
    row = make_row(LENGTHS)
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(2, sum(LENGTHS), generator=generator).mul(8).bfloat16()
    logits.requires_grad_()

    narrow = row_losses(row, *logits)
    wide = row_losses({**row, "max_length": sum(LENGTHS)}, *logits)
    wide.sum().backward()

    assert wide.dtype == torch.float32
    torch.testing.assert_close(wide, narrow, rtol=1e-6, atol=0)
    assert logits.grad.isfinite().all()
    assert logits.grad.abs().sum() > 0


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(("causal", "kv_heads"), [(False, 4), (True, 4), (True, 2), (True, 1)])
def test_attention_is_softmax_of_scaled_scores_within_each_window(causal, kv_heads, padded):
    lengths = [3, 1, 4]
    tokens = sum(lengths)
    torch.manual_seed(0)
    query = torch.randn(1, 4, tokens, 8)
    key, value = torch.randn(2, 1, kv_heads, tokens, 8)
    module = nn.Module()
    module.is_causal = causal

    output, weights = CAUSAL[causal](
        module, query, key, value, None, scaling=0.3, packed_layout=bounds_of(lengths, padded)
    )

    # Query heads share a head of keys in groups.
    keys = key.repeat_interleave(4 // kv_heads, dim=1).split(lengths, dim=2)
    values = value.repeat_interleave(4 // kv_heads, dim=1).split(lengths, dim=2)
    windows = []
    for q, k, v in zip(query.split(lengths, dim=2), keys, values, strict=True):
        scores = q @ k.mT * 0.3
        if causal:
            future = torch.ones_like(scores).triu(1).bool()
            scores = scores.masked_fill(future, -torch.inf)
        windows.append(scores.softmax(-1) @ v)
    expected = torch.cat(windows, dim=2)
    assert weights is None
    torch.testing.assert_close(output, expected.transpose(1, 2))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_dropout_keeps_the_mean_of_attention_without(padded, causal):
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 2, 12, 8)
    bounds = bounds_of([5, 7], padded)

    def run(dropout):
        output, _ = CAUSAL[causal](nn.Module(), q, k, v, None, dropout, 0.3, packed_layout=bounds)
        return output

    outputs = torch.stack([run(0.1) for _ in range(1000)])
    torch.testing.assert_close(outputs.mean(0), run(0.0), atol=0.075, rtol=0)
    assert outputs.std(0).mean() > 0.1
    torch.testing.assert_close(run(1e-6), run(0.0))


def test_a_call_that_would_mix_windows_is_refused():
    model = make_model()
    ids = torch.tensor([[2, 7, 3]])
    with pytest.raises(ValueError, match=r"inputs\.read_spans"):
        model(input_ids=ids)
    with pytest.raises(ValueError, match="attention_mask"):
        model(input_ids=ids, attention_mask=torch.ones_like(ids))
    with pytest.raises(ValueError, match="8 tokens do not fit 2 windows of at most 3"):
        RowBounds(torch.tensor([0, 4, 8], dtype=torch.int32), 8, 3)


def test_a_model_that_would_ignore_the_layout_is_refused():
    mpnet = AutoModelForQuestionAnswering.from_config(
        AutoConfig.for_model("mpnet", **SHAPE), attn_implementation=attention.PACKED
    )
    for model in (mpnet, make_model("albert", "sdpa")):
        with pytest.raises(UserError, match=r"hyperparameters\.model: .*packed rows; use"):
            inputs.model_inputs(model, make_row(LENGTHS))


@pytest.mark.parametrize("padded", [False, True])
def test_local_attention_reaches_less_than_its_window(padded):
    lengths = [6, 3]
    generator = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 1, 2, 9, 8, generator=generator)

    def attend(dropout):
        output, _ = attention.packed_attention(
            nn.Module(),
            q,
            k,
            v,
            None,
            dropout,
            packed_layout=bounds_of(lengths, padded),
            sliding_window=3,
        )
        return output

    # A token attends within its window, to those less than 3 places away.
    window = torch.tensor([0] * 6 + [1] * 3)
    position = torch.tensor([*range(6), *range(3)])
    in_window = window[:, None] == window
    near = (position[:, None] - position).abs() < 3
    scores = q @ k.mT / 8**0.5
    scores = scores.masked_fill(~(in_window & near), -torch.inf)
    expected = (scores.softmax(-1) @ v).transpose(1, 2)
    torch.testing.assert_close(attend(0.0), expected, rtol=1e-5, atol=1e-6)

    torch.manual_seed(0)
    outputs = torch.stack([attend(0.1) for _ in range(999)])
    torch.testing.assert_close(outputs.mean(0), expected, rtol=0, atol=0.1)


@pytest.mark.parametrize(("causal", "use"), [(False, "ALBERT"), (True, "GPT-2")])
def test_attention_that_is_more_than_a_softmax_is_refused(causal, use):
    module = nn.Module()
    ones = torch.ones(1, 2, 5, 8)
    bounds = RowBounds(torch.tensor([0, 5]), 5, 5)
    attend = functools.partial(CAUSAL[causal], module, ones, ones, ones, None, packed_layout=bounds)
    unsupported = ["position_bias", "softcap"]
    if causal:
        unsupported.append("sliding_window")
    for option in unsupported:
        problem = (
            f"Module uses {option}, which packed rows do not support; use a model such as {use}"
        )
        with pytest.raises(UserError, match=problem):
            attend(**{option: 4})

    module.is_causal = True
    if not causal:
        with pytest.raises(UserError, match="Module uses is_causal"):
            attend()
