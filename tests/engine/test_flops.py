"""Floating-point operations by formula: a known model, and what torch counts."""

import subprocess

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
)

from detalbert.engine import flops
from detalbert.engine.flops import (
    masked_flops,
    relative_scores,
    training_flops,
)
from lm.flops import causal_flops
from tests.conftest import ROOT
from tests.fakes.encoders import LENGTHS, MODELS, make_model
from tests.fakes.masked import FAMILIES
from tests.lm.ranks import SHAPES, tiny

MASKED = ["modernbert", "mpnet", "xlm-roberta", "bert"]  # families whose head counts


def test_counting_needs_no_torch(real_python):
    code = "import sys, detalbert.engine.flops, lm.flops; sys.exit('torch' in sys.modules)"
    subprocess.run([real_python, "-c", code], cwd=ROOT, check=True)


@pytest.mark.parametrize("name", MODELS)
def test_flops_are_what_torch_counts(name):
    """Three times the products of a real forward, window after window, by torch's own counter."""
    library = make_model(name, "eager").eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        for length in LENGTHS:
            library(input_ids=torch.full((1, length), 7))
    counted = training_flops(library.config, np.array(LENGTHS))
    assert counted == 3 * counter.get_total_flops()


@pytest.mark.parametrize("name", MASKED)
def test_flops_of_a_masked_language_model_are_what_torch_counts(name):
    """Windows shorter than the reach of ModernBERT's local layers; the head on every token."""
    config = AutoConfig.for_model(**FAMILIES[name].keys, vocab_size=100, pad_token_id=1)
    library = AutoModelForMaskedLM.from_config(config, attn_implementation="eager").eval()
    lengths = [5, 7, 8]
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        for length in lengths:
            library(input_ids=torch.full((1, length), 7))
    span_head = 3 * 2 * 2 * config.hidden_size  # which fine-tuning has instead
    counted = training_flops(config, np.array(lengths)) - sum(lengths) * span_head
    assert counted + sum(lengths) * masked_flops(config) == 3 * counter.get_total_flops()


@pytest.mark.parametrize("buckets", [16, -1])
@pytest.mark.parametrize("share", [True, False])
def test_flops_of_deberta_are_what_torch_counts(share, buckets):
    """But for the projections of the positions, which a row of any number of windows has once."""
    keys = FAMILIES["deberta-v2"].keys | {"max_relative_positions": -1}
    keys |= {"share_att_key": share, "position_buckets": buckets}
    config = AutoConfig.for_model(**keys, vocab_size=100)
    library = AutoModelForQuestionAnswering.from_config(config).eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        library(input_ids=torch.full((3, 20), 7))
    positions = 3 * 2 * relative_scores(config) * config.hidden_size**2 * config.num_hidden_layers
    counted = training_flops(config, np.array([20] * 3))
    assert counted + positions == 3 * counter.get_total_flops()


CAUSAL_CASES = [
    *((family, {}) for family in SHAPES),
    ("gpt2", {"n_inner": 100}),
    ("llama", {"head_dim": 24}),
    ("qwen2", {}),
]


@pytest.mark.parametrize(("family", "keys"), CAUSAL_CASES)
def test_causal_flops_are_what_torch_counts(family, keys):
    """Token after token with a cache, so that each reads itself and those before it, no more."""
    config = tiny(family, **keys)
    library = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    lengths = [9, 1, 5]
    token = torch.tensor([[7]])
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        for length in lengths:
            cache = None
            for _ in range(length):
                cache = library(token, past_key_values=cache).past_key_values
    assert causal_flops(config, np.array(lengths)) == 3 * counter.get_total_flops()


PEAKS = {  # TFLOP/s in half precision and in fp32
    "NVIDIA A100-PCIE-80GB": (312, 19.5),
    "Tesla V100-SXM2-16GB": (125, 15.7),
    "Tesla V100-PCIE-32GB": (112, 14),
    "NVIDIA H100 80GB HBM3": (989, 67),
    "NVIDIA H200 NVL": (835, 60),
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": (500, 120),
}
UNKNOWN = "NVIDIA L40", "NVIDIA A10", "", "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "NVIDIA GH200 480GB"


def test_the_peak_goes_by_the_words_of_a_gpus_name():
    for device, (half, fp32) in PEAKS.items():
        assert flops.peak_flops(device, half=True) == pytest.approx(1e12 * half), device
        assert flops.peak_flops(device, half=False) == pytest.approx(1e12 * fp32), device
    for device in UNKNOWN:
        assert not flops.peak_flops(device, half=True)
