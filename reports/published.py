"""The published figures of published.yaml, for reports/, benchmarks/ and cluster/."""

from pathlib import Path
from typing import NamedTuple

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


class Point(NamedTuple):
    """One measurement of a scaling series."""

    series: str
    units: int  # GPUs or machines, see the series' name
    throughput: float  # a second: windows, sequences or samples
    source: str


FINE_TUNING = [Published(**row) for row in _DATA["fine_tuning"]]
TABLES = _DATA["tables"]
METHOD = _DATA["method"]
PRINTED_EFFICIENCY = {
    row["series"]: row["efficiency"] for row in _DATA["scaling"] if "efficiency" in row
}
_SERIES = {
    "fine-tuning xxlarge, windows/s over GPUs": {r.slots: r.throughput for r in FINE_TUNING},
    **{row["series"]: row["throughput"] for row in _DATA["scaling"]},
}
_GAINS = {row["nodes"]: 1 + row["16 a GPU"] for row in TABLES["gains"]["rows"]}
_SERIES["pretraining base on p4d, 12 loader workers, samples/s over nodes"] = {
    nodes: rate * _GAINS[nodes] for nodes, rate in _DATA["scaling"][-1]["throughput"].items()
}
SCALING = [
    Point(series, units, rate, "published")
    for series, rates in _SERIES.items()
    for units, rate in rates.items()
]
