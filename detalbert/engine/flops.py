"""Floating-point operations of training, counted from the config over real tokens, and GPU peaks.

Needs only NumPy: reports and estimates count without torch.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

# TFLOP/s of dense products, from data sheets: in fp16 and bf16, on tensor cores if there are any,
# and in fp32 (TF32 is not used here). By the words in what CUDA calls the GPU; without "PCIe" it is
# on a board of its own (SXM).
PEAKS: dict[str, tuple[float, float]] = {
    "K80": (4, 4), "P4": (5, 5), "P100": (19, 9.3), "T4": (65, 8.1),
    "V100": (125, 15.7), "V100 PCIE": (112, 14), "A100": (312, 19.5),
    "A10G": (70, 35), "L4": (121, 30.3), "L40S": (362, 91.6),
    "H100": (989, 67), "H100 PCIE": (756, 51), "H100 NVL": (835, 60),
    "H200": (989, 67), "H200 NVL": (835, 60), "B200": (2250, 75), "B300": (2250, 75),
    "RTX PRO 6000": (500, 120), "RTX PRO 4500": (200, 50),  # fp16: an eighth of sparse FP4
}  # fmt: skip


def peak_flops(device: str, half: bool) -> float | None:
    """Return the peak FLOP/s of `device`; None for a GPU that is not in the table, or a MIG slice.

    `device` is as torch.cuda.get_device_name returns it, "NVIDIA A100-SXM4-40GB".
    """
    words = device.upper().replace("-", " ").split()
    names = [name for name in PEAKS if f" {name} " in f" {' '.join(words)} "]
    if not names or "MIG" in words:
        return None
    found = PEAKS[names[0]]
    for variant in ("PCIE", "NVL"):
        if variant in words:
            found = PEAKS.get(f"{names[0]} {variant}", found)
    return 1e12 * found[not half]


ENCODERS = "albert", "bert", "roberta", "electra", "distilbert"  # held against torch's counter


def training_flops(config: Any, lengths: np.ndarray) -> float:
    """Return the FLOPs of one forward and backward over windows of these lengths.

    Counts matrix products over real tokens: 2 per weight and token; backward is two products for
    each of forward (Chowdhery et al. 2022, arXiv:2204.02311, appendix B). Recomputation, softmax,
    norms and look-ups are excluded.

    albert-xxlarge (h 4096, f 16384, 12 layers) at 173 tokens per window, per token: layers 3 * 12 *
    2 * (4 * 4096^2 + 2 * 4096 * 16384) = 14.50e9, attention 3 * 12 * 4 * 4096 * 173 = 0.10e9,
    embedding mapping and head 0.003e9: 14.6e9.

    `config` is of an ALBERT- or BERT-like encoder; `lengths` are real tokens per window, [n].
    """
    h, layers = config.hidden_size, config.num_hidden_layers
    layers *= getattr(config, "inner_group_num", 1)
    f = config.intermediate_size if hasattr(config, "intermediate_size") else config.hidden_dim
    e = getattr(config, "embedding_size", h)
    lengths = np.asarray(lengths, dtype=np.float64)
    per_token = layers * 2 * (4 * h * h + 2 * h * f)  # q, k, v, output; the two of the FFN
    per_token += 2 * e * h if e != h else 0  # embedding mapping
    per_token += 2 * h * 2  # start and end logit
    per_pair = layers * 4 * h  # q k and weights v: 2 * h each, for every pair of tokens
    return float(3 * (per_token * lengths.sum() + per_pair * np.square(lengths).sum()))


def flops_of_row(config: Any, row: Mapping[str, Any]) -> float:
    """Return the FLOPs of `training_flops` plus the vocabulary head on masked tokens. The head's
    products, h x e and e x V, are counted alike. `row` is a `PretrainRow` on the CPU.
    """
    head = 2 * config.embedding_size * (config.hidden_size + config.vocab_size)
    return training_flops(config, row_lengths(row)) + 3 * head * len(row["masked"])


def row_lengths(row: Mapping[str, Any]) -> np.ndarray:
    """Return the tokens of each window or document segment of a packed row on the CPU, [n]."""
    return np.diff(np.asarray(row["cu_seqlens"]))


def encoder_flops_per_token(config: Any, length: float, masked: float = 0.0) -> float:
    """Return an encoder's training FLOPs per token, of which a share `masked` has a vocabulary
    head, in windows of `length` tokens.
    """
    flops = training_flops(config, np.array([length])) / length
    if masked:
        embedding = getattr(config, "embedding_size", config.hidden_size)
        flops += 3 * masked * 2 * embedding * (config.hidden_size + config.vocab_size)
    return flops


def causal_flops_per_token(config: Any, length: int) -> float:
    """Return a causal model's training FLOPs per token in windows of `length` tokens; `config` is
    of a family of FFN_PRODUCTS.
    """
    flops = causal_flops(config, np.array([length]))
    assert flops is not None
    return flops / length


FFN_PRODUCTS = {"gpt2": 2, "gpt_neox": 2, "llama": 3, "qwen2": 3}  # 3: one of them is a gate


def causal_flops(config: Any, lengths: np.ndarray) -> float | None:
    """Return the FLOPs of one forward and backward of a causal model; None for an unknown family.

    Counted as in `training_flops`; the head is a product over the whole vocabulary for every token.
    A token attends to itself and to those before it: L * (L + 1) / 2 pairs, where published figures
    mostly count L^2 (PaLM, appendix B).

    llama, h 768, f 2048, 12 layers of 12 heads, V 32,000, one segment of 1,024, per token: layers 3
    * 12 * 2 * (4 * 768^2 + 3 * 768 * 2048) = 509.6e6, head 3 * 2 * 768 * 32000 = 147.5e6, attention
    3 * 12 * 4 * 768 * 512.5 = 56.7e6: 713.8e6.

    `config` has `model_type`; `lengths` are tokens per document segment, [n].
    """
    if config.model_type not in FFN_PRODUCTS:
        return None
    h, layers, heads = config.hidden_size, config.num_hidden_layers, config.num_attention_heads
    d = getattr(config, "head_dim", None) or h // heads
    shared = getattr(config, "num_key_value_heads", None) or heads
    f = getattr(config, "intermediate_size", None) or getattr(config, "n_inner", None) or 4 * h
    lengths = np.asarray(lengths, dtype=np.float64)
    layer = h * d * (2 * heads + 2 * shared)  # q, output; k, v
    layer += FFN_PRODUCTS[config.model_type] * h * f
    per_token = 2 * (layers * layer + h * config.vocab_size)
    per_pair = layers * 4 * heads * d
    pairs = (lengths * (lengths + 1) / 2).sum()
    return float(3 * (per_token * lengths.sum() + per_pair * pairs))
