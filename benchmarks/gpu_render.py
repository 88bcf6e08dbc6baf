"""A day's results (gpu_day.py) in all places that have figures of a GPU.

python -m benchmarks gpu-render --day runs/gpu

Copies the results to benchmarks/results/gpu, and writes docs/speed.md, cluster/facts/speeds.yaml
and the README's table, between marks. A day that was cut gives the rows that it has.
"""

import json
import math
import shutil
from pathlib import Path

from benchmarks import table
from benchmarks.table import write_between
from detalbert.engine.flops import PEAKS
from detalbert.errors import UserError
from detalbert.integrity import Json

ROOT = Path(__file__).resolve().parents[1]
SPEED_PAGE = Path("docs/speed.md")
SPEED_ROWS = Path("cluster/facts/speeds.yaml")
PAGE_MARKS = ("<!-- day with a GPU -->", "<!-- end of the day -->")
ROW_MARKS = ("# A day with a GPU; gpu-render writes these rows.", "  # The end of that day.")
TASKS = {"finetuning": "fine-tuning", "pretraining": "pretraining", "lm": "language"}
HEAD = """\
| step | tokens per forward | per second | MFU | memory: used, planned | launches | idle |
| --- | --- | --- | --- | --- | --- | --- |
"""


def render_day(day: Path | None, root: Path = ROOT) -> None:
    """Put the results of `day` (default: those that were copied last) into all places.

    Raises:
        UserError: if they are not of a GPU, or a mark is missing.
    """
    kept = table.RESULTS / "gpu"
    day = kept if day is None else day
    if not (day / "check.json").is_file():
        raise UserError("no check.json in it", key=f"--day {day}", cure="run make gpu first")
    check = json.loads((day / "check.json").read_text())
    if check["device"]["type"] != "cuda":
        raise UserError("its results are not of a GPU", key=f"--day {day}", cure="name another one")
    if day != kept:
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(day, kept)

    steps = [json.loads(path.read_text()) for path in sorted(kept.glob("step-*.json"))]
    begin, end = PAGE_MARKS
    text = f"{describe_machine(check, kept / 'tests.json')}\n\n{HEAD}"
    text += "".join(page_row(step, figures) for step, figures in budgets(steps))
    write_between(root / SPEED_PAGE, begin, text, end)
    begin, end = ROW_MARKS
    text = "".join(speed_row(check, step, figures) for step, figures in budgets(steps))
    write_between(root / SPEED_ROWS, begin, text, end)
    table.render(root / "README.md")


def budgets(steps: list[Json]) -> list[tuple[Json, Json]]:
    """Return each result with each of its budgets that fit the memory."""
    pairs = []
    for step in steps:
        for figures in step["budgets"]:
            if "out_of_memory" not in figures:
                pairs.append((step, figures))
    return pairs


def describe_machine(check: Json, tests: Path) -> str:
    """Return a paragraph on machine, versions and tests."""
    gpu = check["gpu"]
    versions = check["versions"]
    outcomes = []
    if tests.is_file():
        outcomes = list(json.loads(tests.read_text())["outcomes"].values())
    commit = (check["commit"] or "unknown")[:7]
    driver = (check["driver"] or "unknown").split(",")[0]
    return (
        f"{check['device']['name']}, capability {gpu['capability']}, {check['device']['cores']}"
        f" cores; driver {driver}, Python {versions['python']}, torch {versions['torch']},"
        f" transformers {versions['transformers']} ({check['time'][:10]}, commit {commit}).\n"
        f"Products of bf16 reach {gpu['bf16_flops'] / 1e12:.0f} TFLOP/s, copies"
        f" {gpu['bytes_per_second'] / 1e12:.1f} TB/s."
        f" Tests: {outcomes.count('PASSED')} of {len(outcomes)} passed."
    )


def page_row(step: Json, figures: Json) -> str:
    """Return a row of the page's table."""
    settings = step["settings"]
    unit = "tokens" if settings["workload"] == "lm" else "windows"
    rate = figures[f"{unit}_per_second"]
    peak = planned = launches = gaps = "-"
    if "peak" in figures:
        peak = f"{figures['peak']['used_bytes'] / 2**30:.1f} GiB"
        planned = f"{figures['planned_bytes'] / 2**30:.1f} GiB"
    if "profile" in figures:
        profile = figures["profile"]
        launches = f"{profile['launches']:,}"
        gaps = f"{profile['gap_seconds'] / profile['seconds']:.0%}"
    cells = [
        f"{TASKS[settings['workload']]}, {settings['shape']}",
        f"{figures['max_tokens_per_forward']:,}",
        f"{rate['median']:,.0f} ± {rate['spread']:,.0f} {unit}",
        f"{figures['mfu']['median']:.2f}",
        f"{peak}, {planned}",
        launches,
        gaps,
    ]
    return f"| {' | '.join(cells)} |\n"


def speed_row(check: Json, step: Json, figures: Json) -> str:
    """Return a row of cluster/facts/speeds.yaml, in JSON, which is YAML."""
    settings = step["settings"]
    is_lm = settings["workload"] == "lm"
    rate = figures["tokens_per_second" if is_lm else "windows_per_second"]
    words = check["device"]["name"].replace("-", " ").split()
    row = {
        "by": "this package",
        "measured": f"{(step['commit'] or 'unknown')[:7]} {step['time'][:10]}",
        "compiled": settings["compiled"],
        "task": TASKS[settings["workload"]],
        "model": f"LM {settings['shape']}" if is_lm else f"albert-{settings['shape']}-v2",
        "gpu": next((word for word in words if word in PEAKS), words[-1]),
        # As sold: the driver keeps less than one of them.
        "gigabytes": math.ceil(check["gpu"]["memory_bytes"] / 2**30),
        "gpus": 1,
        "tokens" if is_lm else "windows": round(rate["median"], 1),
        "length": round(settings["tokens_per_window"], 1),
        "forward": figures["max_tokens_per_forward"],
        "spread": round(rate["spread"] / rate["median"], 2),
    }
    if is_lm:
        row |= {"shape": settings["model"], "recompute": "none"}
    return f"  - {json.dumps(row)}\n"
