"""Tokens per second of one GPU: published, measured here, or modelled from the nearest of these."""

import json
import math
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import numpy as np

from cluster.machines import FAMILIES, ROOT, Gpu, gpu_of
from cluster.published import FINE_TUNING, LANGUAGE, LENGTH, Language
from detalbert.engine.flops import causal_flops, training_flops
from detalbert.engine.memory import Sizes
from pretrain.hparams import SIZE_KEYS, SIZES

MEASURED = ROOT / "benchmarks" / "results" / "step-h100.json"
REAL = 174.4 / 384  # of a window of SQuAD: tokens that are no padding


class Rate(NamedTuple):
    """Speed of one GPU without time spent waiting for the network."""

    tokens: float  # a second
    source: str  # published, measured or modelled
    how: str


_XXL = SimpleNamespace(**dict(zip(SIZE_KEYS, SIZES["xxlarge"], strict=True)))


def causal_token(config: Any, length: int) -> float:
    """Return training FLOPs per token in a window of `length` tokens (see flops.causal_flops)."""
    return cast(float, causal_flops(config, np.array([length]))) / length


def encoder_token(config: Any, length: float, masked: float = 0.0) -> float:
    """Return an encoder's training FLOPs per token, a share `masked` with a vocabulary head."""
    head = 2 * getattr(config, "embedding_size", config.hidden_size)
    head *= config.hidden_size + config.vocab_size if masked else 0
    return training_flops(config, np.array([length])) / length + 3 * masked * head


def language_rate(
    sizes: Sizes, flops: float, gpu: Gpu, slots: int, length: int, checkpointing: bool
) -> Rate:
    """Estimate a causal model's speed from the FLOP/s of the closest published training.

    Closest by GPU, then parameters, then number of GPUs. Activation recomputation costs 4/3 of the
    compute. Only llm-foundry's rows are used: the shapes of their models are known, so FLOPs are
    counted alike. `flops` are per token.
    """

    def distance(row: Language) -> tuple[float, ...]:
        size = abs(math.log(row.millions * 1e6 / sizes.parameters))
        other = row.gpu != gpu.name, row.gigabytes != gpu.gigabytes
        return (*other, size, abs(math.log(row.gpus / slots)))

    row = min((row for row in LANGUAGE if row.by == "llm-foundry"), key=distance)
    h, published = row.hidden, next(g for g in FAMILIES.values() if g.name == row.gpu)
    keys: dict[str, Any] = {"model_type": "gpt_neox", "vocab_size": 50_368}
    keys |= {"hidden_size": h, "intermediate_size": 4 * h, "num_attention_heads": h // 64}
    mpt = SimpleNamespace(num_hidden_layers=row.layers, **keys)
    done = row.tokens * causal_token(mpt, row.length)  # FLOP/s
    again = (1 + checkpointing / 3) / (1 + bool(row.checkpointing) / 3)
    tokens = done / flops / again * gpu.teraflops / published.teraflops
    near = abs(row.millions * 1e6 / sizes.parameters - 1) < 0.15
    same = (row.gpu, row.gigabytes, row.gpus, row.length, row.checkpointing)
    alike = near and same == (gpu.name, gpu.gigabytes, slots, length, checkpointing)
    how = f"as {row.describe()}, MFU {row.mfu:.1%}"
    return Rate(tokens, "published" if alike else "modelled", how)


def encoder_rate(flops: float, gpu: Gpu, slots: int) -> Rate:
    """Estimate an encoder's speed over real tokens; `flops` are per token.

    GPUs from Ampere on are assumed to reach the MFU measured on an H100; older ones that of the
    widest published run on V100s, padding included.
    """
    peak = gpu.teraflops * 1e12
    if gpu.has_bf16:
        result = json.loads(MEASURED.read_text(encoding="utf-8"))
        mfu, length = result["results"]["ours"]["mfu"]["median"], 384 * REAL
        alike = gpu.name == "H100" and slots == 1
        source, how = "measured", f"MFU {mfu:.1%}, albert-xxlarge on one H100"
    else:
        run, length = FINE_TUNING[-1], LENGTH
        done = encoder_token(_XXL, length) * run.throughput * length / run.slots
        mfu = done / 1e12 / cast(Gpu, gpu_of(run.instance)).teraflops
        alike = gpu.name == "V100" and slots == run.slots
        source, how = "published", f"MFU {mfu:.1%}, albert-xxlarge on {run.slots} V100, padded"
    alike = alike and math.isclose(flops, encoder_token(_XXL, length), rel_tol=1e-3)
    return Rate(mfu * peak / flops, source if alike else "modelled", how)
