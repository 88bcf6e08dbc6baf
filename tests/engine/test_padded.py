"""Every family that the library runs, packed or padded, against the library's padded batches."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoConfig, AutoModelForQuestionAnswering

from detalbert.engine.forward import Forward
from detalbert.engine.padded import attention_of, pack_or_pad, positions
from detalbert.engine.rows import micro_batches
from detalbert.errors import UserError
from tests.fakes.encoders import MODELS, SHAPE, make_row

LENGTHS = [37, 9, 12, 21, 7, 30]
SIDED = {"relative_attention": True, "position_biased_input": False, "type_vocab_size": 0}
SIDED |= {"pos_att_type": ["p2c", "c2p"], "norm_rel_ebd": "layer_norm", "share_att_key": True}
BUCKETS = {"position_buckets": 16, "max_relative_positions": 64}
XLNET = {"d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 64, "vocab_size": 100, "dropout": 0.0}
CANINE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
CANINE |= {"intermediate_size": 64, "num_hash_buckets": 64}
TOKENS = dict.fromkeys("pad_token_id bos_token_id eos_token_id cls_token_id".split(), 0)
# The family, its keys, and whether it runs packed.
FAMILIES: dict[str, tuple[str, dict[str, Any], bool]] = {
    "deberta-v3": ("deberta-v2", {**SIDED, **BUCKETS}, False),
    "deberta-v2": ("deberta-v2", {**SIDED, "share_att_key": False, "conv_kernel_size": 3}, False),
    "deberta": ("deberta", {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]}, False),
    "mpnet": ("mpnet", {}, False),
    "modernbert": ("modernbert", {**TOKENS, "sep_token_id": 0, "local_attention": 8}, True),
    "longformer": ("longformer", {"attention_window": [8, 8], "sep_token_id": 2}, False),
    "big_bird": ("big_bird", {}, False),
    "xlnet": ("xlnet", XLNET, False),
    "roberta": ("roberta", MODELS["roberta"], True),
    "xlm-roberta": ("xlm-roberta", MODELS["roberta"], True),
    "electra": ("electra", MODELS["electra"], True),
    "albert": ("albert", MODELS["albert"], True),
    # Its embeddings reach into the next window, and its logits are small.
    "mobilebert": ("mobilebert", {"initializer_range": 0.02}, False),
    "nemotron": ("nemotron", {"num_key_value_heads": 2, "head_dim": 8}, False),  # takes no layout
    "canine": ("canine", {**CANINE, "pad_token_id": 0}, False),  # no vocabulary
    "gpt2": ("gpt2", {"n_embd": 32, "n_layer": 2, "n_head": 4, "attn_pdrop": 0.0}, False),
}


FUNNEL = {"d_model": 32, "n_head": 4, "d_head": 8, "d_inner": 64, "num_decoder_layers": 1}
FUNNEL |= {"block_sizes": [1, 1, 1], "hidden_dropout": 0.0, "attention_dropout": 0.0}
FUNNEL |= {"vocab_size": 100, "activation_dropout": 0.0}
# More families that run padded; the logits of some depend on it.
PADDED: dict[str, tuple[str, dict[str, Any], bool]] = {
    "funnel": ("funnel", FUNNEL, False),
    "convbert": ("convbert", {"embedding_size": 32}, False),
    "fnet": ("fnet", {}, False),
    "roformer": ("roformer", {"embedding_size": 32}, False),
    "squeezebert": ("squeezebert", {"embedding_size": 32}, False),
}
UNTYPED = "roberta xlm-roberta mpnet modernbert deberta-v3 deberta-v2 deberta nemotron gpt2".split()


def make(name: str) -> Any:
    family, keys, _ = (FAMILIES | PADDED)[name]
    torch.manual_seed(0)
    shape = {} if family in ("xlnet", "canine", "funnel") else SHAPE
    config = AutoConfig.for_model(family, **{**shape, **copy.deepcopy(keys)})
    return AutoModelForQuestionAnswering.from_config(
        config, attn_implementation=attention_of(config)
    ).eval()


def separated(row: Any) -> Any:
    """Windows with the three separators that Longformer looks for."""
    ids, start = row["input_ids"].clamp(min=3), row["cu_seqlens"][:-1].long()
    for place in (start + 2, start + 3, row["cu_seqlens"][1:].long() - 1):
        ids[place] = 2
    return {**row, "input_ids": ids}


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_are_the_librarys_on_a_padded_batch(name, caplog):
    model, library = make(name), make(name)
    library.set_attn_implementation("sdpa" if library._supports_sdpa else "eager")
    row = separated(make_row(LENGTHS))
    before = copy.deepcopy(model.state_dict())
    with caplog.at_level("INFO", logger="detalbert"):
        pack_or_pad(model)
    packed = FAMILIES[name][2]
    assert ("padded: its attention is not" in caplog.text) != packed
    forward = Forward(model, "fp32", torch.device("cpu"))
    assert forward.padded != packed
    assert all(map(torch.equal, before.values(), model.state_dict().values()))
    with torch.no_grad():
        found = torch.stack(forward(row)).split(LENGTHS, dim=1)
    pads = {"input_ids": getattr(library.config, "pad_token_id", None) or 0, "token_type_ids": 0}
    row["attention_mask"] = torch.ones_like(row["input_ids"])
    names = ["input_ids", "attention_mask", *([] if name in UNTYPED else ["token_type_ids"])]
    grid = torch.nn.utils.rnn.pad_sequence
    batch = {key: grid(row[key].split(LENGTHS), True, pads.get(key, 0)) for key in names}
    with torch.no_grad():
        output = library(**batch)
    for n, length in enumerate(LENGTHS):
        wanted = torch.stack([output.start_logits[n, :length], output.end_logits[n, :length]])
        torch.testing.assert_close(found[n], wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["deberta-v3", "longformer", "modernbert", "xlnet"])
def test_a_gradient_does_not_depend_on_the_other_windows(name):
    """Windows of several lengths together, and one by one."""
    row, model = separated(make_row(LENGTHS)), make(name)
    pack_or_pad(model)
    forward = Forward(model, "fp32", torch.device("cpu"))
    weights = torch.randn(2, sum(LENGTHS), generator=torch.Generator().manual_seed(1))
    sides = []
    for parts in ([slice(0, 6)], [slice(n, n + 1) for n in range(6)]):
        model.zero_grad()
        for part in parts:
            first, last = row["cu_seqlens"][part.start].item(), row["cu_seqlens"][part.stop].item()
            some = {k: row[k][first:last] for k in ("input_ids", "token_type_ids", "position_ids")}
            bounds = row["cu_seqlens"][part.start : part.stop + 1] - first
            some |= {"cu_seqlens": bounds, "max_length": int(bounds.diff().max())}
            (torch.stack(forward(some)) * weights[:, first:last]).sum().backward()
        gradients = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
        sides.append(torch.cat(gradients))
    assert (sides[0] - sides[1]).norm() < 1e-5 * sides[1].norm()


def test_big_bird_attends_in_full_however_long_its_windows_are():
    model = make("big_bird")
    assert model.bert.attention_type == "block_sparse"
    pack_or_pad(model)
    assert model.bert.attention_type == "original_full"


def test_positions_without_a_table_have_no_end():
    wanted = {"deberta-v3": None, "xlnet": None, "albert": 128, "mpnet": 126, "gpt2": 128}
    assert {name: positions(make(name)) for name in wanted} == wanted


@given(st.lists(st.integers(1, 30), max_size=40), st.integers(30, 120))
def test_padded_micro_batches_have_like_lengths_and_fit(lengths, budget):
    sizes = np.array(lengths, np.int64)
    parts = micro_batches(sizes, budget, padded=True)
    assert sorted(np.concatenate([np.zeros(0, int), *parts]).tolist()) == list(range(len(sizes)))
    for part, after in zip(parts, [*parts[1:], None], strict=False):
        assert len(part) and len(part) * sizes[part].max() <= budget
        assert after is None or sizes[part].max() <= sizes[after].min()


def test_a_model_of_other_inputs_is_one_line():
    config = AutoConfig.for_model("lxmert", **SHAPE)
    model = AutoModelForQuestionAnswering.from_config(config)
    with pytest.raises(UserError, match="does not run on a question and its context"):
        pack_or_pad(model)


DEPENDENT = "the padding, and so on the other questions of a row"


@pytest.mark.parametrize("name", [*FAMILIES, *PADDED])
def test_a_model_whose_answers_depend_on_padding_says_so(name: str, caplog: Any) -> None:
    """What is said of the probe is so of other rows: each window alone, and padded together."""
    model = make(name)
    with caplog.at_level("INFO", logger="detalbert"):
        pack_or_pad(model)
    said = caplog.text.count(DEPENDENT)
    assert said == (name in ("funnel", "canine", "convbert", "fnet"))
    forward = Forward(model, "fp32", torch.device("cpu"))
    row = separated(make_row(LENGTHS))
    distances = []
    with torch.no_grad():
        together = torch.stack(forward(row))  # [2, T]
        for window, length in enumerate(LENGTHS):
            first = int(row["cu_seqlens"][window])
            names = ("input_ids", "token_type_ids", "position_ids")
            one = {key: row[key][first : first + length] for key in names}
            one |= {"cu_seqlens": torch.tensor([0, length], dtype=torch.int32)}
            alone = torch.stack(forward({**one, "max_length": length}))
            distances.append((alone - together[:, first : first + length]).abs().max())
    assert bool(max(distances) > 1e-3 * together.std()) == bool(said)
