"""Dealing, packing, packed attention against the library's padded forward, losses and FLOPs."""

import copy
import functools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from transformers import AutoConfig, AutoModelForQuestionAnswering

from detalbert.engine import attention, evaluation, flops
from detalbert.errors import UserError

LENGTHS = [37, 9, 5, 21, 1, 30]  # 5 is [CLS] q [SEP] c [SEP]
SHAPE = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
    "vocab_size": 100, "max_position_embeddings": 128, "initializer_range": 0.2,
    "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
}  # fmt: skip
MODELS = {
    "albert": {**SHAPE, "embedding_size": 16, "pad_token_id": 0},
    "bert": {**SHAPE, "pad_token_id": 0},
    "roberta": {**SHAPE, "pad_token_id": 1, "type_vocab_size": 1},
    "electra": {**SHAPE, "embedding_size": 16, "pad_token_id": 0},
    "distilbert": {
        "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64, "vocab_size": 100, "dropout": 0.0,
        "attention_dropout": 0.0, "qa_dropout": 0.0, "initializer_range": 0.2, "pad_token_id": 0,
    },
}  # fmt: skip

window_lengths = st.lists(st.integers(1, 384), min_size=1, max_size=60)


def make_model(name, attention, seed=0):
    torch.manual_seed(seed)
    config = AutoConfig.for_model(name, **copy.deepcopy(MODELS[name]))
    model = AutoModelForQuestionAnswering.from_config(config, attn_implementation=attention)
    for parameter in model.parameters():  # biases too, or a lost one would not be seen
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter, parameter.mean().item(), 0.1)
    return model.train()


def make_row(lengths, seed=0):
    draw = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, 100, (sum(lengths),), generator=draw)
    position = torch.cat([torch.arange(length) for length in lengths])
    starts = torch.tensor([length // 3 for length in lengths])
    return {
        "input_ids": ids,
        "token_type_ids": torch.cat([torch.arange(n) >= n // 2 for n in lengths]).long(),
        "position_ids": position,
        "cu_seqlens": torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32),
        "start_positions": starts,
        "end_positions": torch.tensor([n - 1 - n // 4 for n in lengths]),
        "max_length": max(lengths),
        "windows": torch.arange(len(lengths)),
    }


def padded_losses(model, row, lengths):
    """The library's forward on a padded batch with its attention mask; per-window losses [n]."""

    def grid(flat):
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


def packed_losses(model, row):
    positions = row["start_positions"], row["end_positions"]
    return evaluation.window_losses(
        *attention.answer_logits(model, row), row["cu_seqlens"], *positions
    )


def losses_and_gradients(model, losses):
    model.zero_grad()
    losses.mean().backward()
    gradients = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
    return losses.detach(), torch.cat(gradients)


def relative_distance(ours, reference):
    return max(float((a - b).norm() / b.norm()) for a, b in zip(ours, reference, strict=True))


def parity(name, row, attention="eager", lengths=LENGTHS):
    """How far loss and gradients of packed `row` are from the padded forward of make_row's row."""
    model, library = make_model(name, attention.PACKED), make_model(name, attention)
    ours = losses_and_gradients(model, packed_losses(model, row))
    reference = padded_losses(library, make_row(lengths), lengths)
    return relative_distance(ours, losses_and_gradients(library, reference))


@pytest.fixture(params=["windows", "grid"])
def both_ways(request, monkeypatch):
    """Window after window (what a CPU does), and the padded grid (what a GPU does)."""
    padded = request.param == "grid"
    monkeypatch.setattr(attention, "Layout", functools.partial(attention.Layout, padded=padded))


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", MODELS)
def test_loss_and_gradients_are_those_of_the_padded_forward(name, attention, both_ways):
    assert parity(name, make_row(LENGTHS), attention) < 1e-5


@pytest.mark.parametrize("lengths", [[23], [12, 12, 12]])
def test_parity_holds_for_one_window_and_for_equal_ones(lengths, both_ways):
    assert parity("albert", make_row(lengths), lengths=lengths) < 1e-5


@pytest.mark.parametrize("name", ["albert", "bert", "roberta"])
def test_parity_fails_when_windows_see_each_other(name, monkeypatch):
    whole = torch.tensor([0, sum(LENGTHS)], dtype=torch.int32)

    def leak(cu_seqlens, tokens, max_length):
        return layout(whole, tokens, tokens)

    layout = attention.Layout
    monkeypatch.setattr(attention, "Layout", leak)
    assert parity(name, make_row(LENGTHS)) > 1e-2


@pytest.mark.parametrize("name", ["albert", "bert", "roberta"])
def test_parity_fails_when_positions_run_on(name):
    row = make_row(LENGTHS)
    row["position_ids"] = torch.arange(sum(LENGTHS))
    assert parity(name, row) > 1e-2


@pytest.mark.parametrize("name", ["albert", "bert", "electra"])
def test_parity_fails_when_segments_are_lost(name):
    row = make_row(LENGTHS)
    row["token_type_ids"] = torch.zeros_like(row["token_type_ids"])
    assert parity(name, row) > 1e-2


@pytest.mark.parametrize("name", MODELS)
def test_window_losses_are_the_librarys_own_span_loss(name):
    model, library = make_model(name, attention.PACKED), make_model(name, "sdpa")
    row, first = make_row(LENGTHS), 0
    for loss, start, end, length in zip(
        packed_losses(model, row), row["start_positions"], row["end_positions"], LENGTHS,
        strict=True,
    ):  # fmt: skip
        here = slice(first, first + length)
        batch = {"input_ids": row["input_ids"][None, here]}
        if getattr(model.config, "type_vocab_size", 0) > 1:
            batch["token_type_ids"] = row["token_type_ids"][None, here]
        alone = library(**batch, start_positions=start[None], end_positions=end[None]).loss
        torch.testing.assert_close(loss, alone, rtol=1e-5, atol=1e-6)
        first += length


@pytest.mark.parametrize("padded", [False, True])
def test_attention_is_softmax_of_scaled_scores_within_each_window(padded):
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
def test_attention_drops_weights_out(padded):
    lengths = [200, 300]
    layout = attention.Layout(make_row(lengths)["cu_seqlens"], 500, 300, padded=padded)
    query, value = torch.zeros(1, 1, 500, 4), torch.ones(1, 1, 500, 4)
    torch.manual_seed(0)
    out, _ = attention.packed_attention(
        torch.nn.Module(), query, query, value, None, dropout=0.5, packed_layout=layout
    )
    # Every weight is 1 / length; half of them are dropped and the rest doubled, so 1 on average.
    assert out.std() > 0.01
    assert out.mean().item() == pytest.approx(1.0, abs=0.02)


def test_a_layout_that_cannot_hold_its_tokens_is_refused():
    with pytest.raises(ValueError, match="8 tokens do not fit 2 windows of at most 3"):
        attention.Layout(torch.tensor([0, 4, 8], dtype=torch.int32), 8, 3)


def test_an_ordinary_call_of_a_packed_model_is_refused():
    model, ids = make_model("albert", attention.PACKED), torch.tensor([[2, 7, 3]])
    with pytest.raises(ValueError, match=r"packing\.answer_logits"):
        model(input_ids=ids)
    with pytest.raises(ValueError, match="attention_mask"):
        model(input_ids=ids, attention_mask=torch.ones_like(ids))


def test_models_that_would_attend_across_windows_are_refused():
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


def test_the_call_goes_through_the_ddp_wrapper(tmp_path):
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        wrapped = torch.nn.parallel.DistributedDataParallel(make_model("roberta", attention.PACKED))
        forwards = []
        wrapped.register_forward_pre_hook(lambda *_: forwards.append(1))
        row, bare = make_row(LENGTHS), make_model("roberta", attention.PACKED)
        ours = losses_and_gradients(wrapped, packed_losses(wrapped, row))
    finally:
        torch.distributed.destroy_process_group()
    assert forwards == [1]
    assert relative_distance(ours, losses_and_gradients(bare, packed_losses(bare, row))) < 1e-6


def test_nothing_is_read_back_from_the_device():
    # A meta tensor has no values: any .item(), .tolist() or bool() of one raises.
    model = make_model("albert", attention.PACKED).to("meta")
    row = {k: v.to("meta") if k != "max_length" else v for k, v in make_row(LENGTHS).items()}
    start, end = attention.answer_logits(model, row)
    positions = row["start_positions"], row["end_positions"]
    losses = evaluation.window_losses(start, end, row["cu_seqlens"], *positions, row["max_length"])
    losses.mean().backward()
    assert losses.shape == (len(LENGTHS),)
    assert start.shape == end.shape == (sum(LENGTHS),)


def test_max_length_may_be_left_out():
    model, row = make_model("albert", attention.PACKED).eval(), make_row(LENGTHS)
    known = attention.answer_logits(model, row)
    del row["max_length"]
    torch.testing.assert_close(attention.answer_logits(model, row), known, rtol=0, atol=0)


def test_window_losses_are_fp32_and_do_not_depend_on_the_grid():
    row, draw = make_row(LENGTHS), torch.Generator().manual_seed(1)
    logits = torch.randn(2, sum(LENGTHS), generator=draw).mul(8).bfloat16().requires_grad_()
    rest = row["cu_seqlens"], row["start_positions"], row["end_positions"]
    wide = evaluation.window_losses(*logits, *rest)
    narrow = evaluation.window_losses(*logits, *rest, max(LENGTHS))
    assert wide.dtype == torch.float32
    torch.testing.assert_close(wide, narrow, rtol=1e-6, atol=0)
    start, end = (x.float().split(LENGTHS) for x in logits)
    answers = zip(start, end, row["start_positions"], row["end_positions"], strict=True)
    expected = [(s.logsumexp(0) - s[i] + e.logsumexp(0) - e[j]) / 2 for s, e, i, j in answers]
    torch.testing.assert_close(wide, torch.stack(expected), rtol=1e-5, atol=1e-6)
    wide.sum().backward()
    assert logits.grad.isfinite().all() and logits.grad.abs().sum() > 0


def test_flops_of_albert_xxlarge_per_real_token():
    config = AutoConfig.for_model(
        "albert", hidden_size=4096, num_hidden_layers=12, num_attention_heads=64,
        intermediate_size=16384, embedding_size=128, vocab_size=30000,
    )  # fmt: skip
    lengths = np.full(48, 173)
    linear = 12 * (4 * 4096**2 + 2 * 4096 * 16384) * 2 * 3  # 14.496e9
    attention = 12 * 4 * 4096 * 173 * 3  # 0.102e9
    mapping_and_head = (128 * 4096 + 4096 * 2) * 2 * 3  # 0.003e9
    per_token = flops.training_flops(config, lengths) / lengths.sum()
    assert per_token == pytest.approx(linear + attention + mapping_and_head, rel=1e-12)
    assert per_token == pytest.approx(14.6e9, rel=2e-3)


@pytest.mark.parametrize("name", MODELS)
def test_flops_are_what_torch_counts(name):
    """Three times the products of a real forward, window after window, by torch's own counter."""
    from torch.utils.flop_counter import FlopCounterMode

    library = make_model(name, "eager").eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        for length in LENGTHS:
            library(input_ids=torch.full((1, length), 7))
    counted = flops.training_flops(library.config, np.array(LENGTHS))
    assert counted == 3 * counter.get_total_flops()
