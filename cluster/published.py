"""Published figures (published.yaml), for reports/, benchmarks/ and cluster/."""

from pathlib import Path
from typing import Any, NamedTuple

import yaml

_DATA = yaml.safe_load((Path(__file__).parent / "published.yaml").read_text(encoding="utf-8"))
# Training windows of SQuAD 2.0 in the older preprocessing; the article itself says none, its times
# and throughputs imply 132,120 to 133,668.
WINDOWS = 132_198
# Training windows of the data sets whose size is known before they are read.
KNOWN_WINDOWS = dict.fromkeys(("rajpurkar/squad_v2", "squad_v2", "train-v2.0.json"), WINDOWS)
EPOCHS = 2
LENGTH = 384  # tokens of a window, padding included
MODEL = "albert-xxlarge-v2"


class Published(NamedTuple):
    """One published fine-tuning run of MODEL on V100s of 16 GB."""

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

    def shown(self) -> dict[str, Any]:
        gpus = f"{self.gpus} x {self.gpu}-{self.gigabytes}"
        kept = {"True": "full", "False": "none"}.get(str(self.checkpointing), "part")
        row = {"model": f"{self.by} {self.model}", "GPUs": gpus, "length": self.length, "AC": kept}
        return {**row, "tokens/s": self.tokens, "MFU": self.mfu}


FINE_TUNING = [Published(**row) for row in _DATA["fine_tuning"]]
LANGUAGE = [Language(**row) for row in _DATA["language"]]
TABLES = {
    **_DATA["tables"],
    "language": {
        "title": "Language models (published; tokens/s of a GPU; AC: activation checkpointing)",
        "rows": [row.shown() for row in LANGUAGE],
        "formats": {"length": "{:,}", "tokens/s": "{:,}", "MFU": "{:.1%}"},
    },
}
METHOD = _DATA["method"]


def points() -> list[dict[str, Any]]:
    """Return a row per measurement of a scaling series: throughput/s at N GPUs or machines."""
    gains = {row["nodes"]: 1 + row["16 a GPU"] for row in TABLES["gains"]["rows"]}
    series = {row["series"]: row["throughput"] for row in _DATA["scaling"]}
    ours = {run.slots: run.throughput for run in FINE_TUNING}
    workers = {nodes: rate * gains[nodes] for nodes, rate in list(series.values())[-1].items()}
    series = {"fine-tuning xxlarge, windows/s over GPUs": ours, **series}
    series["pretraining base on p4d, 12 loader workers, samples/s over nodes"] = workers
    rows = [(name, units, rate) for name, rates in series.items() for units, rate in rates.items()]
    return [{"series": s, "source": "published", "N": n, "throughput": rate} for s, n, rate in rows]
