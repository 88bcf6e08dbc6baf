"""The floating-point operations of training, counted from the config over real tokens.

Needs NumPy alone: reports and estimates count without torch.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np


def training_flops(config: Any, lengths: np.ndarray) -> float:
    """Floating-point operations of one forward and backward over windows of these lengths.

    Counts matrix products over real tokens from the config, not from the parameters: ALBERT uses
    one layer's weights in all 12 layers. A product costs 2 per weight and token; backward is two
    products for each one of forward (Chowdhery et al. 2022, arXiv:2204.02311, appendix B).
    Recomputation, softmax, norms and look-ups are left out.

    albert-xxlarge (h 4096, f 16384, 12 layers) at 173 tokens a window, per token: layers
    3 * 12 * 2 * (4 * 4096^2 + 2 * 4096 * 16384) = 14.50e9, attention 3 * 12 * 4 * 4096 * 173 =
    0.10e9, embedding mapping and head 0.003e9: 14.6e9.

    Args: config: of an ALBERT- or BERT-like encoder; lengths: real tokens per window, [n].
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
    """One forward and backward of pretraining: `training_flops`, and the head on hidden tokens.

    The head's products, h x e and e x V, are counted as above.

    Args: row: a `PretrainRow`, on the host.
    """
    head = 2 * config.embedding_size * (config.hidden_size + config.vocab_size)
    lengths = np.diff(np.asarray(row["cu_seqlens"]))
    return training_flops(config, lengths) + 3 * head * len(row["masked"])
