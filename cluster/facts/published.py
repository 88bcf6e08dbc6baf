"""Published figures for reports/, benchmarks/ and cluster/ (facts/published.yaml).

Speeds stand in a file of their own (facts/speeds.yaml), which the speed model reads as well: a
figure that both use is written down once.
"""

from pathlib import Path
from types import SimpleNamespace

import yaml

_FILE = Path(__file__).with_name("published.yaml")
_DATA = yaml.safe_load(_FILE.read_text(encoding="utf-8"))
# Training windows of SQuAD 2.0 in the older preprocessing; the article itself says none, its times
# and throughputs imply 132,120 to 133,668.
WINDOWS = 132_198
# Training windows of the data sets whose size is known before they are read.
KNOWN_WINDOWS = dict.fromkeys(("rajpurkar/squad_v2", "squad_v2", "train-v2.0.json"), WINDOWS)
EPOCHS = 2
VALIDATION_WINDOWS = 12_100  # of its dev-v2.0.json, from the ratio of windows to questions
# of its files
QUESTIONS = 130_319
VALIDATION_QUESTIONS = 11_873
MODEL = "albert-xxlarge-v2"

SPEEDS = yaml.safe_load(_FILE.with_name("speeds.yaml").read_text(encoding="utf-8"))["rows"]
_RATES = {row["gpus"]: row["windows"] for row in SPEEDS if row["by"] == "Determined AI"}
FINE_TUNING = []  # runs of MODEL
for _row in _DATA["fine_tuning"]:
    FINE_TUNING.append(SimpleNamespace(**_row, throughput=_RATES[_row["slots"]]))
SERIES = []  # throughput and windows of each by GPUs or machines
for _row in _DATA["scaling"]:
    SERIES.append(
        SimpleNamespace(
            series=_row["series"],
            throughput=dict(_row["throughput"]),
            windows=_row.get("windows", {}),
        )
    )
_BY_NAME = {row.series: row for row in SERIES}
for _row in SPEEDS:
    if "series" in _row:
        # Of machines of eight GPUs, beside what was published by machines.
        _BY_NAME[_row["series"]].throughput[_row["gpus"] // 8] = _row["windows"]
