"""Published figures for reports/, benchmarks/ and cluster/ (facts/published.yaml)."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import yaml

_FILE = Path(__file__).parent / "facts" / "published.yaml"
_DATA = yaml.safe_load(_FILE.read_text(encoding="utf-8"))
# Training windows of SQuAD 2.0 in the older preprocessing; the article itself says none, its times
# and throughputs imply 132,120 to 133,668.
WINDOWS = 132_198
# Training windows of the data sets whose size is known before they are read.
KNOWN_WINDOWS = dict.fromkeys(("rajpurkar/squad_v2", "squad_v2", "train-v2.0.json"), WINDOWS)
EPOCHS = 2
VALIDATION_WINDOWS = 12_100  # of its dev-v2.0.json, from the ratio of windows to questions
LENGTH = 384  # tokens of a window, padding included
MODEL = "albert-xxlarge-v2"

_SPEEDS = yaml.safe_load(_FILE.with_name("speeds.yaml").read_text(encoding="utf-8"))["rows"]
_RATES = {row["gpus"]: row["windows"] for row in _SPEEDS if row["by"] == "Determined AI"}
FINE_TUNING = [  # runs of MODEL
    SimpleNamespace(**row, throughput=_RATES[row["slots"]]) for row in _DATA["fine_tuning"]
]
LANGUAGE = [SimpleNamespace(**row) for row in _SPEEDS if row["task"] == "language"]
TABLES = _DATA["tables"]
METHOD = _DATA["method"]


def points() -> list[dict[str, Any]]:
    """Return a row per measurement of a scaling series: throughput/s at N GPUs or machines."""
    gains = {row["nodes"]: 1 + row["16 a GPU"] for row in TABLES["gains"]["rows"]}
    series = {row["series"]: row["throughput"] for row in _DATA["scaling"]}
    for row in _SPEEDS:
        if "series" in row:
            series[row["series"]][row["gpus"] // 8] = row["windows"]
    ours = {run.slots: run.throughput for run in FINE_TUNING}
    workers = {nodes: rate * gains[nodes] for nodes, rate in list(series.values())[-1].items()}
    series = {"fine-tuning xxlarge, windows/s over GPUs": ours, **series}
    series["pretraining base on p4d, 12 loader workers, samples/s over nodes"] = workers
    rows = [(name, units, rate) for name, rates in series.items() for units, rate in rates.items()]
    return [{"series": s, "source": "published", "N": n, "throughput": rate} for s, n, rate in rows]
