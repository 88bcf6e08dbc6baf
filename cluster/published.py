"""The published figures of published.yaml, for reports/, benchmarks/ and cluster/."""

from pathlib import Path
from typing import Any, NamedTuple

import yaml

_DATA = yaml.safe_load((Path(__file__).parent / "published.yaml").read_text(encoding="utf-8"))
# Training windows of SQuAD 2.0 in the older preprocessing; the article itself says none, its times
# and throughputs imply 132,120 to 133,668.
WINDOWS = 132_198
EPOCHS = 2
LENGTH = 384  # tokens of a window, padding included
MODEL = "albert-xxlarge-v2"
PARAMETERS = 223_000_000


class Published(NamedTuple):
    """One fine-tuning run of MODEL on V100s of 16 GB."""

    slots: int
    instance: str
    spot: bool
    batch: int  # windows a step
    throughput: float  # windows a second
    hours: float
    exact: float
    f1: float


class Language(NamedTuple):
    """One published training of a causal language model."""

    by: str
    model: str
    millions: float  # of parameters
    layers: int
    hidden: int
    gpu: str
    gigabytes: int
    gpus: int
    length: int  # tokens of a window
    checkpointing: bool | str  # of activations
    tokens: float  # a second, of one GPU
    mfu: float | None

    def describe(self) -> str:
        return f"{self.by}'s {self.model} on {self.gpus} {self.gpu} of {self.gigabytes} GB"


FINE_TUNING = [Published(**row) for row in _DATA["fine_tuning"]]
LANGUAGE = [Language(**row) for row in _DATA["language"]]
_AC: dict[Any, str] = {True: "full", False: "none"}
TABLES = {
    **_DATA["tables"],
    "language": {
        "title": "Language models (published; tokens/s of a GPU; AC: activation checkpointing)",
        "rows": [
            {"model": f"{row.by} {row.model}", "GPUs": f"{row.gpus} x {row.gpu}-{row.gigabytes}",
             "length": row.length, "AC": _AC.get(row.checkpointing, "part"),
             "tokens/s": row.tokens, "MFU": row.mfu}
            for row in LANGUAGE
        ],
        "formats": {"length": "{:,}", "tokens/s": "{:,}", "MFU": "{:.1%}"},
    },
}  # fmt: skip
METHOD = _DATA["method"]


def points() -> list[dict[str, Any]]:
    """A row for each measurement of a scaling series: throughput a second at N GPUs or machines."""
    gains = {row["nodes"]: 1 + row["16 a GPU"] for row in TABLES["gains"]["rows"]}
    series = {row["series"]: row["throughput"] for row in _DATA["scaling"]}
    ours = {run.slots: run.throughput for run in FINE_TUNING}
    workers = {nodes: rate * gains[nodes] for nodes, rate in list(series.values())[-1].items()}
    series = {"fine-tuning xxlarge, windows/s over GPUs": ours, **series}
    series["pretraining base on p4d, 12 loader workers, samples/s over nodes"] = workers
    return [{"series": name, "source": "published", "N": units, "throughput": rate}
            for name, rates in series.items() for units, rate in rates.items()]  # fmt: skip
