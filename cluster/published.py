"""Published runs, and the efficiency of GPUs in measured and published ones.

The figures that reports, benchmarks and plans have in common are written down once, each with its
source: cluster/data/published.yaml and speeds.yaml.

A GPU's share of its peak carries over to another GPU, tokens per second do not. The nearest
measurement was preferred to a fitted curve: there are few, of different software, and a reader can
look up the one that an estimate rests on. Expect half to twice the time of a GPU that nobody has
measured.
"""

import functools
import math
from types import SimpleNamespace
from typing import Any, NamedTuple

import yaml

from cluster import DATA
from detalbert.engine.flops import PEAKS, encoder_flops_per_token
from lm.flops import causal_flops_per_token

_DATA = yaml.safe_load((DATA / "published.yaml").read_text(encoding="utf-8"))
# Training windows of SQuAD 2.0 in the older preprocessing; the article itself says none, its times
# and throughputs imply 132,120 to 133,668.
WINDOWS = 132_198
EPOCHS = 2
VALIDATION_WINDOWS = 12_100  # of its dev-v2.0.json, from the ratio of windows to questions
QUESTIONS = 130_319  # of its train-v2.0.json
MODEL = "albert-xxlarge-v2"

_SPEEDS = yaml.safe_load((DATA / "speeds.yaml").read_text(encoding="utf-8"))
SPEEDS = _SPEEDS["rows"]
MODELS: dict[str, dict[str, Any]] = _SPEEDS["models"]  # keys of a config.json, by name
_RATES = {row["gpus"]: row["windows"] for row in SPEEDS if row["by"] == "Determined AI"}
FINE_TUNING = []  # runs of MODEL, of April 2021
for _row in _DATA["fine_tuning"]:
    _cost = _row["machines"] * _row["hours"] * _row["dollars"]
    FINE_TUNING.append(SimpleNamespace(**_row, throughput=_RATES[_row["slots"]], cost=_cost))
SERIES = []  # throughput and windows of each by GPUs or machines
for _row in _DATA["scaling"]:
    # Those of speeds.yaml are of machines of eight GPUs.
    _rows = [row for row in SPEEDS if row.get("series") == _row["series"]]
    _rates = {row["gpus"] // 8: row["windows"] for row in _rows}
    SERIES.append(
        SimpleNamespace(
            series=_row["series"],
            throughput=_row["throughput"] | _rates,
            windows=_row.get("windows", {}),
        )
    )

MASKED = 0.15  # of a window's tokens, in published pretraining
# Tokens of a window of SQuAD, of 384 places: the mean over 18 articles, by ALBERT's tokenizer.
SQUAD_WINDOW = 174.4
# Share of the layers that run again in the backward pass; a part is assumed.
RECOMPUTED = {"none": 0.0, "part": 0.5, "full": 1.0}


class Measurement(NamedTuple):
    """A measured or published run, as far as its speed depends on it."""

    task: str  # fine-tuning, pretraining or language
    gpu: str
    gpus: int
    flops: float  # per token
    forward: float | None  # tokens of a forward pass on a GPU; None: not known
    efficiency: float  # share of the GPU's peak in half precision
    is_ours: bool  # of this package, and not of other software


def _measurement(row: dict[str, Any]) -> Measurement:
    """Return a row of speeds.yaml."""
    length = row["length"]
    windows_per_gpu = row.get("windows", 0) / row["gpus"]
    if row["task"] == "language":
        flops = causal_flops_per_token(SimpleNamespace(**row["shape"]), length)
    else:
        # Padding is no work: a rate over padded windows is one over fewer real tokens.
        length = SQUAD_WINDOW if row.get("padded") else length
        masked = MASKED if row["task"] == "pretraining" else 0.0
        flops = encoder_flops_per_token(SimpleNamespace(**MODELS[row["model"]]), length, masked)
    tokens = row.get("tokens") or windows_per_gpu * length  # per second of a GPU
    work = flops * (1 + RECOMPUTED[row.get("recompute", "none")] / 3)
    return Measurement(
        task=row["task"],
        gpu=row["gpu"],
        gpus=row["gpus"],
        flops=flops,
        forward=row.get("forward"),
        efficiency=tokens * work / PEAKS[row["gpu"]][0] / 1e12,
        is_ours="measured" in row,
    )


# Of fp8, which no config here has, there is a row for reports alone.
MEASUREMENTS = [_measurement(row) for row in SPEEDS if not row.get("fp8")]
_OLDER = ("K80", "P4", "P100", "V100", "T4")  # without bf16, and the kernels that come with it


@functools.cache
def nearest_measurement(
    task: str, gpu: str, gpus: int, flops: float, forward: float
) -> Measurement:
    """Return the measurement of a task that is nearest to a job on GPUs.

    Args:
        task: fine-tuning, pretraining or language.
        gpu: name of the GPU.
        gpus: how many train.
        flops: of the model, per token.
        forward: tokens of a forward pass on a GPU.
    """

    def distance(row: Measurement) -> float:
        """Return how unlike a job is: most what changes the kernels, then GPU and software, then by
        the logarithm the model, the work of a forward pass, and the GPUs that sum gradients.
        """
        distance = 1.5 * ((row.gpu in _OLDER) != (gpu in _OLDER))
        distance += 1.0 * (row.gpu != gpu)
        distance += 0.5 * (not row.is_ours)
        distance += 0.3 * abs(math.log(row.flops / flops))
        distance += 0.1 * abs(math.log(row.gpus / gpus))
        if row.forward:
            distance += 0.3 * abs(math.log(row.forward / forward))
        return distance

    return min((row for row in MEASUREMENTS if row.task == task), key=distance)
