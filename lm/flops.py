"""Floating-point operations of training a causal model, counted from its config over real tokens.

Needs only NumPy, as engine/flops.py, whose rules it follows.
"""

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from transformers import PretrainedConfig

FFN_PRODUCTS = {"gpt2": 2, "gpt_neox": 2, "llama": 3, "qwen2": 3}  # 3: one of them is a gate


def causal_flops_per_token(config: "PretrainedConfig", length: int) -> float:
    """Return a causal model's training FLOPs per token in windows of `length` tokens; `config` is
    of a family of FFN_PRODUCTS.
    """
    flops = causal_flops(config, np.array([length]))
    assert flops is not None
    return flops / length


def causal_flops(config: "PretrainedConfig", lengths: np.ndarray) -> float | None:
    """Return the FLOPs of one forward and backward of a causal model; None for an unknown family.

    Counted as in `training_flops` of engine/flops.py; the head is a product over the whole
    vocabulary for every token. A token attends to itself and to those before it: L * (L + 1) / 2
    pairs, where published figures mostly count L^2 (PaLM, appendix B).

    llama, h 768, f 2048, 12 layers of 12 heads, V 32,000, one segment of 1,024, per token: layers 3
    * 12 * 2 * (4 * 768^2 + 3 * 768 * 2048) = 509.6e6, head 3 * 2 * 768 * 32000 = 147.5e6, attention
    3 * 12 * 4 * 768 * 512.5 = 56.7e6: 713.8e6.

    `config` has `model_type`; `lengths` are tokens per document segment, [n].
    """
    if config.model_type not in FFN_PRODUCTS:
        return None
    hidden = config.hidden_size
    layers = config.num_hidden_layers
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    head_size = getattr(config, "head_dim", None) or hidden // heads
    inner = getattr(config, "intermediate_size", None)
    inner = inner or getattr(config, "n_inner", None)  # GPT-2's name
    inner = inner or 4 * hidden

    # Weights that each token is multiplied with.
    queries = hidden * heads * head_size  # as many as of the output
    keys = hidden * kv_heads * head_size  # as many as of the values
    projections = 2 * (queries + keys)
    feed_forward = FFN_PRODUCTS[config.model_type] * hidden * inner
    head = hidden * config.vocab_size
    weights = layers * (projections + feed_forward) + head

    # Pairs of a token and itself or one before it, in its segment.
    lengths = np.asarray(lengths, dtype=np.float64)
    pairs = lengths * (lengths + 1) / 2  # [n]
    per_pair = layers * 4 * heads * head_size

    # A multiplication and an addition each; the backward pass is two forwards.
    tokens = lengths.sum()
    products = 2 * weights * tokens
    attention = per_pair * pairs.sum()
    return float(3 * (products + attention))
