"""One speed model: a GPU's training speed, estimated from the nearest row of facts/speeds.yaml.

What carries over from a measurement is its efficiency: FLOP/s over the GPU's peak in half
precision, recomputation counted.
"""

import functools
import math
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import numpy as np

from cluster.estimates.models import KNOWN_CONFIGS
from cluster.facts.machines import Gpu
from cluster.facts.published import SPEEDS
from detalbert.engine.flops import PEAKS, causal_flops, training_flops

MASKED = 0.15  # of a window's tokens, in published pretraining
REAL = 174.4 / 384  # of a window of SQuAD: tokens that are no padding
RECOMPUTED = {"none": 0.0, "part": 0.5, "full": 1.0}  # share of the activations; a part is assumed
SURE = 0.9  # share of the rows whose error, when each is left out in turn, the spread covers


class Shape(NamedTuple):
    """Properties that a speed depends on."""

    task: str  # fine-tuning, pretraining or language
    flops: float  # per token that the rate counts, recomputation left out
    gpu: str
    half: bool = True  # whether the GPU has bf16
    gigabytes: int = 80
    gpus: int = 1
    forward: int | None = None  # tokens of a forward pass on a GPU
    compiled: bool = False
    recomputed: float = 0.0  # share of the activations
    fp8: bool = False
    ours: bool = True  # this package and not other software

    @property
    def work(self) -> float:
        """Return the FLOPs per token with recomputation: all of the forward adds a third."""
        return self.flops * (1 + self.recomputed / 3)


class Measurement(NamedTuple):
    """A measurement."""

    shape: Shape
    tokens: float  # per second of one GPU
    name: str  # what was measured, by whom
    source: str  # measured, or published
    spread: float  # of its repeats, over the median

    @property
    def efficiency(self) -> float:
        peak = PEAKS[self.shape.gpu][0] * 1e12
        return self.tokens * self.shape.work / peak


class Rate(NamedTuple):
    """Tokens per second of one GPU: middle, and the range that holds for most measurements."""

    low: float
    tokens: float
    high: float
    source: str  # measured, published or modelled
    how: str


def causal_token(config: Any, length: int) -> float:
    """Return training FLOPs per token in a window of `length` tokens (see flops.causal_flops)."""
    return cast(float, causal_flops(config, np.array([length]))) / length


def encoder_token(config: Any, length: float, masked: float = 0.0) -> float:
    """Return an encoder's training FLOPs per token, a share `masked` with a vocabulary head."""
    head = 2 * getattr(config, "embedding_size", config.hidden_size)
    head *= config.hidden_size + config.vocab_size if masked else 0
    return training_flops(config, np.array([length])) / length + 3 * masked * head


def _row(given: dict[str, Any]) -> Measurement:
    row = SimpleNamespace(**given)
    if row.task == "language":
        flops = causal_token(SimpleNamespace(**row.shape), row.length)
    else:
        config = SimpleNamespace(**KNOWN_CONFIGS[row.model])
        flops = encoder_token(config, row.length, MASKED if row.task == "pretraining" else 0.0)
    known = {name: fact for name, fact in given.items() if name in Shape._fields}
    half, ours = row.gpu not in ("V100", "T4"), "measured" in given
    recomputed = RECOMPUTED[given.get("recompute", "none")]
    shape = Shape(flops=flops, half=half, ours=ours, recomputed=recomputed, **known)
    tokens = given.get("tokens") or row.windows * row.length / row.gpus
    where = f"{row.gpus} x {row.gpu} {row.gigabytes} GB"
    source = "measured" if ours else "published"
    return Measurement(
        shape, tokens, f"{row.by}: {row.model}, {where}", source, given.get("spread", 0.0)
    )


MEASUREMENTS = tuple(map(_row, SPEEDS))  # of facts/speeds.yaml


def distance(one: Shape, other: Shape) -> float:
    """Return how far apart two shapes are: 0 for the same one.

    Most is what changes the kernels (the task, a GPU without bf16), then the GPU, then by the
    logarithm how much a forward computes and how many GPUs exchange gradients.
    """
    far = 2.0 * (one.task != other.task) + 1.5 * (one.half != other.half)
    far += 1.0 * (one.gpu != other.gpu) + 0.2 * (one.gigabytes != other.gigabytes)
    far += 0.5 * (one.compiled != other.compiled) + 1.0 * (one.fp8 != other.fp8)
    far += 0.3 * (one.recomputed != other.recomputed) + 0.3 * (one.ours != other.ours)
    far += 0.3 * abs(math.log(one.flops / other.flops))
    far += 0.1 * abs(math.log(one.gpus / other.gpus))
    if one.forward and other.forward:
        far += 0.3 * abs(math.log(one.forward / other.forward))
    return far


def speed(shape: Shape, gpu: Gpu, known: tuple[Measurement, ...] = MEASUREMENTS) -> Rate:
    """Estimate a GPU's speed, without the network between machines, from the nearest row.

    The range is that of the row's repeats if the shape is the row's own; else it is wide enough
    for SURE of the `known` rows of the task when each is estimated from the others.
    """
    row = min(known, key=lambda each: distance(shape, each.shape))
    far = distance(shape, row.shape)
    tokens = row.efficiency * gpu.teraflops * 1e12 / shape.work
    if same := far < 0.02:
        wide = 1 + max(row.spread / 2, 0.05)
    else:
        wide = math.exp(_unsureness(row.shape.task, known) * (1 + far))
    source = row.source if same else "modelled"
    how = f"{'' if same else 'as efficient as '}{row.name}, {row.efficiency:.0%} of the peak"
    return Rate(tokens / wide, tokens, tokens * wide, source, how)


@functools.cache
def _unsureness(task: str, known: tuple[Measurement, ...]) -> float:
    """Return the logarithm of the error, per 1 + distance, that SURE of the task's rows keep."""
    errors = []
    for row in known:
        if row.shape.task == task:
            near = min(
                (r for r in known if r is not row), key=lambda r: distance(row.shape, r.shape)
            )
            error = abs(math.log(near.efficiency / row.efficiency))
            errors.append(error / (1 + distance(row.shape, near.shape)))
    return float(np.quantile(errors, SURE, method="higher"))
