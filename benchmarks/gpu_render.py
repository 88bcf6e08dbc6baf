"""A day's results (gpu_day.py) in all places that have figures of a GPU.

python -m benchmarks gpu-render --day runs/gpu

Copies the results to benchmarks/results/gpu, and writes docs/speed.md, cluster/facts/speeds.yaml
and the README's table, between marks. A day that was cut gives the rows that it has.
"""

import json
import math
import shutil
from collections.abc import Iterable
from pathlib import Path

from benchmarks import table
from benchmarks.table import HERE, write_between
from detalbert.engine.flops import PEAKS
from detalbert.errors import UserError
from detalbert.sums import Json

PAGE = HERE.parent / "docs" / "speed.md"
SPEEDS = HERE.parent / "cluster" / "facts" / "speeds.yaml"
README = HERE.parent / "README.md"
PAGE_MARKS = ("<!-- day with a GPU -->", "<!-- end of the day -->")
ROW_MARKS = ("# A day with a GPU; gpu-render writes these rows.", "  # The end of that day.")
TASKS = {"finetuning": "fine-tuning", "pretraining": "pretraining", "lm": "language"}
COLUMNS = ("model", "forward", "per second", "MFU", "GiB used", "GiB planned", "launches", "idle")


def render_day(day: Path) -> None:
    """Put the results of a day into all places.

    Raises:
        UserError: if they are not of a GPU, or a mark is missing.
    """
    if not (day / "check.json").is_file():
        raise UserError("no check.json in it", key=f"--day {day}", cure="run make gpu first")
    check = json.loads((day / "check.json").read_text())
    if check["device"]["type"] != "cuda":
        raise UserError("its results are not of a GPU", key=f"--day {day}", cure="name another one")
    kept = table.RESULTS / "gpu"
    if day.resolve() != kept:
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(day, kept)

    page = [describe_machine(check), "", table_row(COLUMNS), table_row("---" for _ in COLUMNS)]
    speeds = []
    for path in sorted(kept.glob("step-*.json")):
        step = json.loads(path.read_text())
        for figures in step["budgets"]:
            if "out_of_memory" not in figures:
                row = speed_row(check, step["settings"], figures)
                page.append(table_row(page_cells(row, figures)))
                speeds.append(f"  - {json.dumps(row)}")  # JSON is YAML
    write_between(PAGE, page, *PAGE_MARKS)
    write_between(SPEEDS, speeds, *ROW_MARKS)
    table.render(README)


def table_row(cells: Iterable[object]) -> str:
    """Return a row of a table."""
    return f"| {' | '.join(map(str, cells))} |"


def describe_machine(check: Json) -> str:
    """Return a paragraph on machine and versions."""
    versions = check["versions"]
    return (
        f"{check['device']['name']}, {check['device']['cores']} cores; driver {check['driver']};\n"
        f"Python {versions['python']}, torch {versions['torch']}, transformers"
        f" {versions['transformers']}; {measured_at(check)}."
    )


def measured_at(check: Json) -> str:
    """Return commit and day."""
    return f"{(check['commit'] or 'unknown')[:7]} {check['time'][:10]}"


def speed_row(check: Json, settings: Json, figures: Json) -> Json:
    """Return a row of cluster/facts/speeds.yaml."""
    is_lm = settings["workload"] == "lm"
    unit = "tokens" if is_lm else "windows"
    rate = figures[f"{unit}_per_second"]
    words = check["device"]["name"].replace("-", " ").split()
    row = {
        "by": "this package",
        "measured": measured_at(check),
        "compiled": settings["compiled"],
        "task": TASKS[settings["workload"]],
        "model": f"LM {settings['shape']}" if is_lm else f"albert-{settings['shape']}-v2",
        "gpu": next(word for word in words if word in PEAKS),
        # As sold: the driver keeps less than one of them.
        "gigabytes": math.ceil(check["memory_bytes"] / 2**30),
        "gpus": 1,
        unit: round(rate["median"], 1),
        "length": round(settings["tokens_per_window"], 1),
        "forward": figures["max_tokens_per_forward"],
        "spread": round(rate["spread"] / rate["median"], 2),
    }
    if is_lm:
        row["shape"] = settings["model"]
    return row


def page_cells(row: Json, figures: Json) -> list[object]:
    """Return the cells of COLUMNS; a profile is missing from a day that was cut before it."""
    unit = "tokens" if "tokens" in row else "windows"
    profile = figures.get("profile", {})
    return [
        f"{row['task']}, {row['model']}",
        row["forward"],
        f"{row[unit]:,.0f} {unit} ± {row['spread']:.0%}",
        f"{figures['mfu']['median']:.2f}",
        f"{figures['used_bytes'] / 2**30:.1f}",
        f"{figures['planned_bytes'] / 2**30:.1f}",
        profile.get("launches"),
        f"{profile['idle_seconds'] / profile['seconds']:.0%}" if profile else None,
    ]
