"""Floating-point operations by formula: a known model, and what torch counts."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig

from detalbert.engine.flops import flops_of_row, training_flops
from tests.conftest import ROOT
from tests.fakes.encoders import LENGTHS, MODELS, make_model


def test_counting_needs_no_torch() -> None:
    code = "import sys, detalbert.engine.flops; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_flops_of_albert_xxlarge_per_real_token() -> None:
    config = AutoConfig.for_model(
        "albert", hidden_size=4096, num_hidden_layers=12, num_attention_heads=64,
        intermediate_size=16384, embedding_size=128, vocab_size=30000,
    )  # fmt: skip
    lengths = np.full(48, 173)
    linear = 12 * (4 * 4096**2 + 2 * 4096 * 16384) * 2 * 3  # 14.496e9
    attention = 12 * 4 * 4096 * 173 * 3  # 0.102e9
    mapping_and_head = (128 * 4096 + 4096 * 2) * 2 * 3  # 0.003e9
    per_token = training_flops(config, lengths) / lengths.sum()
    assert per_token == pytest.approx(linear + attention + mapping_and_head, rel=1e-12)
    assert per_token == pytest.approx(14.6e9, rel=2e-3)


@pytest.mark.parametrize("name", MODELS)
def test_flops_are_what_torch_counts(name: str) -> None:
    """Three times the products of a real forward, window after window, by torch's own counter."""
    library = make_model(name, "eager").eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        for length in LENGTHS:
            library(input_ids=torch.full((1, length), 7))
    counted = training_flops(library.config, np.array(LENGTHS))
    assert counted == 3 * counter.get_total_flops()


def test_flops_of_a_row_of_pretraining() -> None:
    """Two windows of 5 and 3 tokens, of which 2 are hidden: the head is run on these."""
    config = AutoConfig.for_model("albert", hidden_size=32, embedding_size=16, vocab_size=100)
    row = {"cu_seqlens": torch.tensor([0, 5, 8]), "masked": torch.tensor([1, 6])}
    head = 3 * 2 * 2 * (32 * 16 + 16 * 100)
    assert flops_of_row(config, row) == training_flops(config, np.array([5, 3])) + head


def test_every_layer_of_a_group_counts() -> None:
    keys = {"hidden_size": 32, "embedding_size": 32, "intermediate_size": 64}
    one, grouped, twice = (
        AutoConfig.for_model("albert", **keys, num_hidden_layers=n, inner_group_num=inner)
        for n, inner in ((3, 1), (3, 2), (6, 1))
    )
    lengths = np.array([7, 4])
    assert training_flops(one, lengths) < training_flops(grouped, lengths)
    assert training_flops(grouped, lengths) == training_flops(twice, lengths)
