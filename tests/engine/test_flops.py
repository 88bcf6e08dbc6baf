"""Floating-point operations by formula: a known model, and what torch counts."""

import subprocess

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, AutoModelForCausalLM

from detalbert.engine.flops import (
    ENCODERS,
    FFN_PRODUCTS,
    causal_flops,
    flops_of_row,
    peak_flops,
    training_flops,
)
from tests.conftest import ROOT
from tests.fakes.encoders import LENGTHS, MODELS, make_model
from tests.lm.ranks import SHAPES, tiny


def test_counting_needs_no_torch(real_python: str) -> None:
    code = "import sys, detalbert.engine.flops; sys.exit('torch' in sys.modules)"
    subprocess.run([real_python, "-c", code], cwd=ROOT, check=True)


def test_flops_of_albert_xxlarge_per_real_token() -> None:
    sizes = {"hidden_size": 4096, "num_hidden_layers": 12, "num_attention_heads": 64}
    sizes |= {"intermediate_size": 16384, "embedding_size": 128, "vocab_size": 30000}
    config = AutoConfig.for_model("albert", **sizes)
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


def test_the_known_families_are_those_that_are_held_against_torch() -> None:
    assert set(ENCODERS) == set(MODELS) and set(FFN_PRODUCTS) == set(SHAPES)
    assert causal_flops(AutoConfig.for_model("opt"), np.array([4])) is None


OTHER_SHAPES = [("gpt2", {"n_inner": 100}), ("llama", {"head_dim": 24}), ("qwen2", {})]


@pytest.mark.parametrize("family, keys", [*((name, {}) for name in SHAPES), *OTHER_SHAPES])
def test_causal_flops_are_what_torch_counts(family: str, keys: dict[str, int]) -> None:
    """Token after token with a cache, so that each reads itself and those before it, no more."""
    config = tiny(family, **keys)
    library = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        for length in (9, 1, 5):
            cache = None
            for _ in range(length):
                cache = library(torch.tensor([[7]]), past_key_values=cache).past_key_values
    assert causal_flops(config, np.array([9, 1, 5])) == 3 * counter.get_total_flops()


def test_backward_is_two_products_for_each_of_forward() -> None:
    """One token, where all pairs are the causal ones; gradients of the first layer's input too."""
    library = AutoModelForCausalLM.from_config(tiny("llama"), attn_implementation="eager")
    with FlopCounterMode(display=False) as counter:
        library(torch.tensor([[7]])).logits.sum().backward()
    assert causal_flops(library.config, np.array([1])) == counter.get_total_flops()


def test_causal_flops_of_a_small_llama_per_token() -> None:
    sizes = {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12}
    config = AutoConfig.for_model("llama", num_attention_heads=12, vocab_size=32000, **sizes)
    assert causal_flops(config, np.array([1024])) / 1024 == pytest.approx(713.8e6, rel=1e-4)


@pytest.mark.parametrize(
    "device, half, teraflops",
    [
        ("NVIDIA A100-SXM4-40GB", True, 312), ("NVIDIA A100-PCIE-80GB", True, 312),
        ("NVIDIA A100-SXM4-80GB", False, 19.5), ("NVIDIA A10G", True, 70),
        ("Tesla V100-SXM2-16GB", True, 125), ("Tesla V100-PCIE-16GB", True, 112),
        ("NVIDIA H100 80GB HBM3", True, 989), ("NVIDIA H100 PCIe", True, 756),
        ("NVIDIA H200 NVL", True, 835), ("NVIDIA L40S", True, 362), ("NVIDIA L4", True, 121),
        ("Tesla T4", False, 8.1), ("NVIDIA A10G", False, 35), ("NVIDIA L4", False, 30.3),
        ("NVIDIA L40S", False, 91.6), ("NVIDIA H200", False, 67),
        ("Tesla V100-PCIE-32GB", False, 14),
        ("NVIDIA L40", True, None), ("NVIDIA A10", True, None), ("", True, None),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", True, None), ("NVIDIA GH200 480GB", True, None),
    ],
)  # fmt: skip
def test_the_peak_goes_by_the_words_of_a_gpus_name(
    device: str, half: bool, teraflops: float | None
) -> None:
    assert peak_flops(device, half) == (teraflops and pytest.approx(1e12 * teraflops))
