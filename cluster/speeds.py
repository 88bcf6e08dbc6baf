"""Tokens a second of one GPU: published, measured here, or modelled from the nearest of these."""

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cluster.machines import Gpu, gpu_of
from cluster.published import FINE_TUNING, LANGUAGE, LENGTH, Language
from detalbert.engine.flops import training_flops
from detalbert.engine.memory import Sizes

MEASURED = Path(__file__).parents[1] / "benchmarks" / "results" / "step-h100.json"
XXLARGE = {"hidden_size": 4096, "num_hidden_layers": 12, "intermediate_size": 16_384,
           "embedding_size": 128}  # fmt: skip


class Rate(NamedTuple):
    """What one GPU does while it waits for no network."""

    tokens: float  # a second
    source: str  # published, measured or modelled
    how: str


class _Shape:
    """A config, as far as FLOPs depend on it."""

    def __init__(self, keys: dict[str, Any]) -> None:
        vars(self).update(keys)


def work(parameters: float, layers: int, hidden: int, length: int) -> float:
    """FLOPs of training on a token as published MFU counts them, 6 N + 12 L h T: every parameter,
    all pairs of tokens (Chowdhery 2022, arXiv:2204.02311, appendix B)."""
    return 6 * parameters + 12 * layers * hidden * length


def language_rate(sizes: Sizes, gpu: Gpu, slots: int, length: int, checkpointing: bool) -> Rate:
    """Of a causal model: at the MFU of the nearest published training, first by GPU, then by
    parameters, then by number of GPUs. A run that computes activations again takes 4 / 3."""

    def distance(row: Language) -> tuple[float, ...]:
        size = abs(math.log(row.millions * 1e6 / sizes.parameters))
        other = row.gpu != gpu.name, row.gigabytes != gpu.gigabytes
        return (*other, size, abs(math.log(row.gpus / slots)))

    row = min((r for r in LANGUAGE if r.mfu and r.checkpointing in (True, False)), key=distance)
    seconds = work(sizes.parameters, sizes.layers, sizes.hidden, length) / 1e12 / gpu.teraflops
    again = (1 + bool(checkpointing) / 3) / (1 + bool(row.checkpointing) / 3)
    near = abs(row.millions * 1e6 / sizes.parameters - 1) < 0.15
    same = (row.gpu, row.gigabytes, row.gpus, row.length, row.checkpointing)
    published = near and same == (gpu.name, gpu.gigabytes, slots, length, checkpointing)
    how = f"MFU {row.mfu:.1%} of {row.describe()}"
    return Rate(row.mfu / seconds / again, "published" if published else "modelled", how)


def encoder_rate(config: Any, gpu: Gpu, slots: int) -> Rate:
    """Of an encoder over real tokens. GPUs from Ampere on are taken to reach the MFU that was
    measured on an H100; older ones that of the widest published run on V100s."""
    flops = training_flops(config, np.ones(1))
    peak = gpu.teraflops * 1e12
    if gpu.has_bf16:
        result = json.loads(MEASURED.read_text(encoding="utf-8"))
        mfu = result["results"]["ours"]["mfu"]["median"]
        same = gpu.name == "H100" and flops == training_flops(_Shape(XXLARGE), np.ones(1))
        source = "measured" if same and slots == 1 else "modelled"
        return Rate(mfu * peak / flops, source, f"MFU {mfu:.1%}, albert-xxlarge on one H100")
    run = FINE_TUNING[-1]
    trained = training_flops(_Shape(XXLARGE), np.ones(1)) * run.throughput * LENGTH / run.slots
    mfu = trained / 1e12 / gpu_of(run.instance).teraflops
    same = gpu.name == "V100" and flops == training_flops(_Shape(XXLARGE), np.ones(1))
    source = "published" if same and slots == run.slots else "modelled"
    how = f"MFU {mfu:.1%} over padded tokens, albert-xxlarge on {run.slots} V100"
    return Rate(mfu * peak / flops, source, how)
