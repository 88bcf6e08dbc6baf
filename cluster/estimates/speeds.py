"""One speed model: a GPU's training speed, estimated from the nearest row of facts/speeds.yaml.

What carries over from a measurement is its efficiency: FLOP/s over the GPU's peak in half
precision, recomputation counted. A nearest row was preferred to a fitted curve: there are few rows,
of different software, and a reader can look up which one an estimate rests on.
"""

import functools
import math
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np

from cluster.facts.machines import Gpu
from cluster.facts.published import SPEEDS
from detalbert.engine.flops import PEAKS, causal_flops_per_token, encoder_flops_per_token
from detalbert.settings.values import Config
from detalbert.training.sizing import SHIPPED

MASKED = 0.15  # of a window's tokens, in published pretraining
RECOMPUTED = {"none": 0.0, "part": 0.5, "full": 1.0}  # share of the activations; a part is assumed
SURE = 0.9  # leave-one-out coverage: share of the rows whose error the range covers


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


def _measurement(row: Config) -> Measurement:
    """Return a row of facts/speeds.yaml."""
    ours = "measured" in row  # commit and day of it, of this package alone
    length = row["length"]
    if row["task"] == "language":
        config = SimpleNamespace(**row["shape"])
        flops = causal_flops_per_token(config, length)
    else:
        config = SimpleNamespace(**SHIPPED[row["model"]])
        masked = MASKED if row["task"] == "pretraining" else 0.0
        flops = encoder_flops_per_token(config, length, masked)
    shape = Shape(
        task=row["task"],
        flops=flops,
        gpu=row["gpu"],
        half=row["gpu"] not in ("V100", "T4"),
        gigabytes=row["gigabytes"],
        gpus=row["gpus"],
        forward=row.get("forward"),
        compiled=row.get("compiled", False),
        recomputed=RECOMPUTED[row.get("recompute", "none")],
        fp8=row.get("fp8", False),
        ours=ours,
    )
    # A row has tokens per second of one GPU, or windows per second of all.
    machines = f"{row['gpus']} x {row['gpu']} {row['gigabytes']} GB"
    return Measurement(
        shape=shape,
        tokens=row.get("tokens") or row["windows"] * length / row["gpus"],
        name=f"{row['by']}: {row['model']}, {machines}",
        source="measured" if ours else "published",
        spread=row.get("spread", 0.0),
    )


MEASUREMENTS = tuple(_measurement(row) for row in SPEEDS)  # of facts/speeds.yaml


def shape_distance(shape: Shape, other: Shape) -> float:
    """Return how far apart two shapes are: 0 for the same one.

    Most is what changes the kernels (the task, a GPU without bf16), then the GPU, then by the
    logarithm how much a forward computes and how many GPUs exchange gradients.
    """
    distance = 2.0 * (shape.task != other.task)
    distance += 1.5 * (shape.half != other.half)
    distance += 1.0 * (shape.gpu != other.gpu)
    distance += 0.2 * (shape.gigabytes != other.gigabytes)
    distance += 0.5 * (shape.compiled != other.compiled)
    distance += 1.0 * (shape.fp8 != other.fp8)
    distance += 0.3 * (shape.recomputed != other.recomputed)
    distance += 0.3 * (shape.ours != other.ours)
    distance += 0.3 * abs(math.log(shape.flops / other.flops))
    distance += 0.1 * abs(math.log(shape.gpus / other.gpus))
    if shape.forward and other.forward:
        distance += 0.3 * abs(math.log(shape.forward / other.forward))
    return distance


@functools.lru_cache(maxsize=4096)
def speed(shape: Shape, gpu: Gpu, rows: tuple[Measurement, ...] = MEASUREMENTS) -> Rate:
    """Estimate a GPU's speed, without the network between machines, from the nearest row.

    The range is that of the row's repeats if the shape is the row's own; else it is wide enough
    for SURE of the task's `rows` when each is estimated from the others.
    """
    row = min(rows, key=lambda row: shape_distance(shape, row.shape))
    distance = shape_distance(shape, row.shape)
    tokens = row.efficiency * gpu.teraflops * 1e12 / shape.work
    how = f"{row.name}, {row.efficiency:.0%} of the peak"
    if distance < 0.02:
        # The row's own shape, where only its repeats differ: by 5 % at least.
        factor = 1 + max(row.spread / 2, 0.05)
        source = row.source
    else:
        factor = math.exp(_log_error(row.shape.task, rows) * (1 + distance))
        source = "modelled"
        how = f"as efficient as {how}"
    return Rate(
        low=tokens / factor,
        tokens=tokens,
        high=tokens * factor,
        source=source,
        how=how,
    )


@functools.cache
def _log_error(task: str, rows: tuple[Measurement, ...]) -> float:
    """Return the logarithm of the error, per 1 + distance, that SURE of the task's rows keep."""
    errors = []
    for row in rows:
        if row.shape.task != task:
            continue
        # Estimate the row from the nearest of the others, as if it had not been measured.
        others = [other for other in rows if other is not row]
        distances = [shape_distance(row.shape, other.shape) for other in others]
        nearest = others[distances.index(min(distances))]
        error = abs(math.log(nearest.efficiency / row.efficiency))
        errors.append(error / (1 + min(distances)))
    return float(np.quantile(errors, SURE, method="higher"))
