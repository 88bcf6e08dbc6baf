"""Floating-point operations of training, counted from the config over real tokens, and GPU peaks.

Needs only NumPy: reports and estimates count without torch. The price is a formula per family of
models, which the tests compare with torch's counter, instead of a count of what runs.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from transformers import PretrainedConfig

# TFLOP/s of dense products, from data sheets: in fp16 and bf16, on tensor cores if there are any,
# and in fp32 (TF32 is not used here). By the words in what CUDA calls the GPU; without "PCIe" it is
# on a board of its own (SXM).
PEAKS: dict[str, tuple[float, float]] = {
    "K80": (4, 4),
    "P4": (5, 5),
    "P100": (19, 9.3),
    "T4": (65, 8.1),
    "V100": (125, 15.7),
    "V100 PCIE": (112, 14),
    "A100": (312, 19.5),
    "A10G": (70, 35),
    "L4": (121, 30.3),
    "L40S": (362, 91.6),
    "H100": (989, 67),
    "H100 PCIE": (756, 51),
    "H100 NVL": (835, 60),
    "H200": (989, 67),
    "H200 NVL": (835, 60),
    "B200": (2250, 75),
    "B300": (2250, 75),
    "RTX PRO 6000": (500, 120),  # fp16: an eighth of sparse FP4
    "RTX PRO 4500": (200, 50),
}


def peak_flops(device: str, half: bool) -> float | None:
    """Return the peak FLOP/s of `device`; None for a GPU that is not in the table, or a MIG slice.

    `device` is as torch.cuda.get_device_name returns it, "NVIDIA A100-SXM4-40GB".
    """
    words = device.upper().replace("-", " ").split()
    spaced = f" {' '.join(words)} "
    names = [name for name in PEAKS if f" {name} " in spaced]
    if not names or "MIG" in words:
        return None
    # A PCIe or NVL board has its own row, if it is slower.
    name = names[0]
    for variant in ("PCIE", "NVL"):
        if variant in words and f"{name} {variant}" in PEAKS:
            name = f"{name} {variant}"
    half_peak, fp32_peak = PEAKS[name]
    return 1e12 * (half_peak if half else fp32_peak)


# Held against torch's counter.
ENCODERS = (
    "albert",
    "bert",
    "roberta",
    "xlm-roberta",
    "electra",
    "distilbert",
    "mpnet",
    "modernbert",
    "deberta-v2",  # and v3
)


def training_flops(config: "PretrainedConfig", lengths: np.ndarray) -> float:
    """Return the FLOPs of one forward and backward over windows of these lengths.

    Counts matrix products over real tokens: 2 per weight and token; backward is two products for
    each of forward (Chowdhery et al. 2022, arXiv:2204.02311, appendix B). Recomputation, softmax,
    norms and look-ups are excluded.

    albert-xxlarge (h 4096, f 16384, 12 layers) at 173 tokens per window, per token: layers 3 * 12 *
    2 * (4 * 4096^2 + 2 * 4096 * 16384) = 14.50e9, attention 3 * 12 * 4 * 4096 * 173 = 0.10e9,
    embedding mapping and head 0.003e9: 14.6e9.

    `config` is of an ALBERT- or BERT-like encoder; `lengths` are real tokens per window, [n].
    """
    hidden = config.hidden_size
    inner = getattr(config, "intermediate_size", None) or config.hidden_dim
    layers = config.num_hidden_layers * getattr(config, "inner_group_num", 1)
    embedding = getattr(config, "embedding_size", hidden)

    # ALBERT's shared layer counts as often as it runs. Weights that each token is multiplied with:
    projections = 4 * hidden * hidden  # q, k, v, output
    gated = config.model_type == "modernbert"  # its feed-forward has a third product
    feed_forward = (3 if gated else 2) * hidden * inner
    mapping = embedding * hidden if embedding != hidden else 0
    head = 2 * hidden  # start and end logit
    weights = layers * (projections + feed_forward) + mapping + head

    # Every pair of tokens of a window: q k and the weighted sum of v, 2 * hidden each. In
    # ModernBERT's local layers only pairs within reach.
    lengths = np.asarray(lengths, dtype=np.float64)
    local_layers = (getattr(config, "layer_types", None) or []).count("sliding_attention")
    pairs = (layers - local_layers) * np.square(lengths).sum()
    if local_layers:
        pairs += local_layers * near_pairs(lengths, config.sliding_window)
    forward = 2 * weights * lengths.sum() + 4 * hidden * pairs
    # DeBERTa: each token with each relative position. The positions' own projections, once a row,
    # are left out, as is its padding.
    forward += 2 * hidden * layers * relative_scores(config) * lengths.sum()
    return float(3 * forward)


def relative_scores(config: "PretrainedConfig") -> int:
    """Return the scores of a token with relative positions, per head and layer: DeBERTa (He et al.
    2021, arXiv:2006.03654) has those of its query, of its key, or both.
    """
    if config.model_type != "deberta-v2" or not getattr(config, "relative_attention", False):
        return 0
    buckets = getattr(config, "position_buckets", -1)
    span = buckets if buckets > 0 else config.max_position_embeddings
    return 2 * span * len(set(config.pos_att_type or ()) & {"c2p", "p2c"})


def near_pairs(lengths: np.ndarray, reach: int) -> float:
    """Return the pairs of tokens of a window that are at most `reach` apart, over all windows. Of 4
    tokens and reach 1: 4 with themselves, 6 with a neighbour.
    """
    reaches = np.minimum(lengths - 1, reach)
    return float((lengths * (2 * reaches + 1) - reaches * (reaches + 1)).sum())


def flops_of_row(config: "PretrainedConfig", row: Mapping[str, Any]) -> float:
    """Return the FLOPs of `training_flops` plus, in pretraining, the vocabulary head on masked
    tokens. The head's products, h x e and e x V, are counted alike. `row` is on the CPU.
    """
    head = masked_flops(config) * len(row.get("masked", ()))
    return training_flops(config, row_lengths(row)) + head


def masked_flops(config: "PretrainedConfig") -> float:
    """Return the FLOPs of the vocabulary head's forward and backward, per masked token."""
    embedding = getattr(config, "embedding_size", config.hidden_size)
    return 3 * 2 * embedding * (config.hidden_size + config.vocab_size)


def row_lengths(row: Mapping[str, Any]) -> np.ndarray:
    """Return the tokens of each window or document segment of a packed row on the CPU, [n]."""
    return np.diff(np.asarray(row["cu_seqlens"]))


def encoder_flops_per_token(
    config: "PretrainedConfig", length: float, masked: float = 0.0
) -> float:
    """Return an encoder's training FLOPs per token, of which a share `masked` has a vocabulary
    head, in windows of `length` tokens.
    """
    flops = training_flops(config, np.array([length])) / length
    return flops + masked * masked_flops(config)
