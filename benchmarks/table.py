"""The table of results in the README: a row for each file in benchmarks/results."""

import json
from pathlib import Path

from detalbert.sums import Json

RESULTS = Path(__file__).resolve().parent / "results"
HEAD = """\
| stage | this package | the baseline | ratio |
| --- | --- | --- | --- |"""


def table() -> str:
    """Return the table of all results."""
    rows = [HEAD]
    for path in sorted(RESULTS.glob("*.json")):
        result = json.loads(path.read_text())
        rows.append(line(result))
    return "\n".join(rows)


def line(result: Json) -> str:
    """Return a result as a row of the table."""
    names = [result["stage"]]
    settings = result["settings"]
    for key in ("workload", "shape", "model"):
        name = settings.get(key)
        if name and name not in names:
            names.append(name)
    stage = " ".join(names)
    device = result["device"]["name"]

    # "windows_per_second", the only one.
    figure = next(iter(result["ratio"]))
    unit = figure.replace("_per_second", "/s")
    ratio = result["ratio"][figure]
    ours = format_speed(result["results"]["ours"][figure])
    baseline = format_speed(result["results"]["baseline"][figure])
    return f"| {stage}, {device} | {ours} {unit} | {baseline} | {ratio:.1f} |"


def format_speed(value: Json) -> str:
    """Format the median and spread of a speed."""
    median = value["median"]
    spread = value["spread"]
    return f"{median:,.1f} ± {spread:,.1f}"
