"""Every family that the library runs, packed or padded, against the library's padded batches."""

import copy
import itertools
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoConfig, AutoModelForQuestionAnswering

from detalbert.engine.forward import Forward
from detalbert.engine.inputs import attention_of, pack_or_pad, positions
from detalbert.engine.rows import micro_batches
from detalbert.errors import UserError
from tests.fakes.encoders import MODELS, SHAPE, make_row
from tests.fakes.masked import DEBERTA_V2

LENGTHS = [37, 9, 12, 21, 7, 30]
CPU = torch.device("cpu")
SPECIAL_TOKENS = {
    "pad_token_id": 0,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "cls_token_id": 0,
    "sep_token_id": 0,
}
XLNET = {
    "d_model": 32,
    "n_layer": 2,
    "n_head": 4,
    "d_inner": 64,
    "vocab_size": 100,
    "dropout": 0.0,
}
CANINE = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "num_hash_buckets": 64,
    "pad_token_id": 0,
}


class Family(NamedTuple):
    """A family and its keys beside SHAPE, how it runs and what it is given."""

    model_type: str
    keys: dict[str, Any] = {}
    packed: bool = False
    has_types: bool = True  # it takes token_type_ids
    shape: dict[str, Any] = SHAPE
    reads_padding: bool = False  # its logits depend on the padding


FAMILIES = {
    "deberta-v3": Family(
        "deberta-v2",
        DEBERTA_V2,
        has_types=False,
    ),
    "deberta-v2": Family(
        "deberta-v2",
        {
            **DEBERTA_V2,
            "share_att_key": False,
            "conv_kernel_size": 3,
            "position_buckets": -1,
            "max_relative_positions": -1,
        },
        has_types=False,
    ),
    "deberta": Family(
        "deberta",
        {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
        has_types=False,
    ),
    "mpnet": Family("mpnet", has_types=False),
    "modernbert": Family(
        "modernbert", {**SPECIAL_TOKENS, "local_attention": 8}, packed=True, has_types=False
    ),
    "longformer": Family("longformer", {"attention_window": [8, 8], "sep_token_id": 2}),
    "big_bird": Family("big_bird"),
    "xlnet": Family("xlnet", XLNET, shape={}),
    "roberta": Family("roberta", MODELS["roberta"], packed=True, has_types=False),
    "xlm-roberta": Family("xlm-roberta", MODELS["roberta"], packed=True, has_types=False),
    "electra": Family("electra", MODELS["electra"], packed=True),
    "albert": Family("albert", MODELS["albert"], packed=True),
    # Its embeddings reach into the next window, and its logits are small.
    "mobilebert": Family("mobilebert", {"initializer_range": 0.02}),
    # It takes no layout.
    "nemotron": Family("nemotron", {"num_key_value_heads": 2, "head_dim": 8}, has_types=False),
    # It has no vocabulary.
    "canine": Family("canine", CANINE, shape={}, reads_padding=True),
    "gpt2": Family(
        "gpt2", {"n_embd": 32, "n_layer": 2, "n_head": 4, "attn_pdrop": 0.0}, has_types=False
    ),
}


def make(name):
    family = FAMILIES[name]
    torch.manual_seed(0)
    keys = copy.deepcopy({**family.shape, **family.keys})
    config = AutoConfig.for_model(family.model_type, **keys)
    model = AutoModelForQuestionAnswering.from_config(
        config, attn_implementation=attention_of(config)
    )
    return model.eval()


def separated(row):
    """Windows with the three separators that Longformer looks for."""
    ids = row["input_ids"].clamp(min=3)
    starts = row["cu_seqlens"][:-1].long()
    ends = row["cu_seqlens"][1:].long()
    for positions_of_separators in (starts + 2, starts + 3, ends - 1):
        ids[positions_of_separators] = 2
    return {**row, "input_ids": ids}


def cut(row, begin, end):
    """The row of windows `begin` .. `end` - 1."""
    first = int(row["cu_seqlens"][begin])
    last = int(row["cu_seqlens"][end])
    bounds = row["cu_seqlens"][begin : end + 1] - first
    return {
        **row,
        "input_ids": row["input_ids"][first:last],
        "token_type_ids": row["token_type_ids"][first:last],
        "position_ids": row["position_ids"][first:last],
        "cu_seqlens": bounds,
        "max_length": int(bounds.diff().max()),
    }


def padded_batch(row, model, has_types):
    """What transformers takes for the windows of a row."""
    pad = getattr(model.config, "pad_token_id", None) or 0

    def grid(values, padding):
        windows = values.split(LENGTHS)
        return pad_sequence(windows, batch_first=True, padding_value=padding)

    batch = {
        "input_ids": grid(row["input_ids"], pad),
        "attention_mask": grid(torch.ones_like(row["input_ids"]), 0),
    }
    if has_types:
        batch["token_type_ids"] = grid(row["token_type_ids"], 0)
    return batch


@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
def test_logits_are_the_librarys_on_a_padded_batch(name, caplog):
    family = FAMILIES[name]
    model = make(name)
    library = make(name)
    library.set_attn_implementation("sdpa" if library._supports_sdpa else "eager")
    row = separated(make_row(LENGTHS))
    with caplog.at_level("INFO", logger="detalbert"):
        pack_or_pad(model)
    forward = Forward(model, "fp32", CPU)

    logits = torch.stack(forward(row)).split(LENGTHS, dim=1)
    expected = library(**padded_batch(row, library, family.has_types))

    assert ("padded: its attention is not" in caplog.text) != family.packed
    dependent = "its logits depend on the padding, and so on the other windows of a row"
    assert (dependent in caplog.text) == family.reads_padding
    assert forward.padded != family.packed
    for number, length in enumerate(LENGTHS):
        start = expected.start_logits[number, :length]
        end = expected.end_logits[number, :length]
        torch.testing.assert_close(logits[number], torch.stack([start, end]), rtol=1e-5, atol=1e-5)
    weights = model.state_dict()
    for key, weight in library.state_dict().items():
        assert torch.equal(weights[key], weight)


@pytest.mark.parametrize("name", ["deberta-v3", "longformer", "modernbert", "xlnet"])
def test_a_gradient_does_not_depend_on_the_other_windows(name):
    """Windows of several lengths together, and one by one."""
    row = separated(make_row(LENGTHS))
    windows = len(LENGTHS)
    model = make(name)
    pack_or_pad(model)
    forward = Forward(model, "fp32", CPU)
    generator = torch.Generator().manual_seed(1)
    weights = torch.randn(2, sum(LENGTHS), generator=generator)

    def gradients_of(rows):
        model.zero_grad()
        for begin, end in rows:
            row_weights = torch.cat(weights.split(LENGTHS, dim=1)[begin:end], dim=1)
            logits = torch.stack(forward(cut(row, begin, end)))
            (logits * row_weights).sum().backward()
        gradients = [parameter.grad for parameter in model.parameters()]
        return torch.cat([gradient.flatten() for gradient in gradients if gradient is not None])

    together = gradients_of([(0, windows)])
    alone = gradients_of([(number, number + 1) for number in range(windows)])
    assert (together - alone).norm() < 1e-5 * alone.norm()


@pytest.mark.parametrize(
    ("name", "expected"),
    [("deberta-v3", None), ("xlnet", None), ("albert", 128), ("mpnet", 126), ("gpt2", 128)],
)
def test_positions_without_a_table_have_no_end(name, expected):
    assert positions(make(name)) == expected


@given(st.lists(st.integers(1, 30), max_size=40), st.integers(30, 120))
def test_padded_micro_batches_have_like_lengths_and_fit(lengths, budget):
    sizes = np.array(lengths, np.int64)
    batches = micro_batches(sizes, budget, padded=True)
    windows = [window for batch in batches for window in batch.tolist()]
    assert sorted(windows) == list(range(len(sizes)))
    for batch in batches:
        assert len(batch) > 0
        assert len(batch) * sizes[batch].max() <= budget
    for batch, following in itertools.pairwise(batches):
        assert sizes[batch].max() <= sizes[following].min()


def test_a_model_of_other_inputs_is_one_line():
    config = AutoConfig.for_model("lxmert", **SHAPE)
    model = AutoModelForQuestionAnswering.from_config(config)
    with pytest.raises(UserError, match="does not run on windows of tokens"):
        pack_or_pad(model)
