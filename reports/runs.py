"""Published runs, local ones (`metrics.json` of an output directory) and benchmark results."""

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from detalbert.errors import UserError, first_line
from reports.prices import Price, find
from reports.published import EPOCHS, FINE_TUNING, WINDOWS
from reports.run import Run


def published_runs(prices: Mapping[str, Price]) -> list[Run]:
    """The published fine-tuning runs, priced with `prices`."""
    runs = []
    for row in FINE_TUNING:
        price = find(prices, row.instance)
        machines = price.machines(row.slots)
        rate = machines * price.hourly(row.spot)
        market = "spot" if row.spot else "on demand"
        runs.append(
            Run(
                name=f"published, {row.slots} GPU" + ("s" if row.slots > 1 else ""),
                hardware=f"{machines} x {row.instance}",
                slots=row.slots,
                pool=market,
                throughput=row.throughput,
                hours=row.hours,
                windows=EPOCHS * WINDOWS,
                rate=rate,
                cost=rate * row.hours,
                exact=row.exact,
                f1=row.f1,
                parts={"training": rate * row.hours},
                notes=("no cost was published for it",) if row.slots == 8 else (),
            )
        )
    return runs


def read_run(text: str, prices: Mapping[str, Price], windows: float | None) -> Run:
    """`PATH`, `PATH@INSTANCE` or `PATH@INSTANCE:spot`; PATH is an output directory or a JSON file.

    `windows` is the work that a benchmark's throughput is projected to.
    Raises UserError for a file that cannot be read or has no throughput.
    """
    path, at, machine = text.rpartition("@")
    if not at:
        path, machine = text, ""
    price, spot = _machine(machine, prices)
    file = Path(path) / "metrics.json" if Path(path).is_dir() else Path(path)
    content = read_json(file)
    if "results" in content or "stage" in content:
        facts, hours = _benchmark(file, content, windows)
    else:
        facts, hours = _local(file, content)
    run = Run(name=path, pool="local", hours=sum(hours.values()), **facts)
    return run if price is None else _priced(run, hours, price, spot)


def _machine(text: str, prices: Mapping[str, Price]) -> tuple[Price | None, bool]:
    if not text:
        return None, False
    instance, _, market = text.partition(":")
    if market not in ("", "spot", "on-demand"):
        raise UserError(f"--run: {market!r} after the instance; expected spot or on-demand")
    return find(prices, instance), market == "spot"


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object. Raises UserError naming the file for anything else."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(
            f"{file}: cannot read it ({first_line(error)}); give the directory of a finished run, "
            "or a benchmark's JSON"
        ) from None
    except ValueError:
        raise UserError(f"{file}: not JSON; give metrics.json or a benchmark's result") from None
    if not isinstance(content, dict):
        raise UserError(f"{file}: expected a JSON object")
    return content


def read_number(file: Path, where: str, value: Any) -> float:
    """A throughput. Raises UserError naming the file for what is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise UserError(f"{file}: {where}: no throughput there (found {value!r}); run it anew")
    if value <= 0:
        raise UserError(f"{file}: {where}: {value:g} must be greater than 0")
    return float(value)


def _local(file: Path, content: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, float]]:
    """The fields of a `Run`, and its hours by what they were for."""
    speed = content.get("throughput")
    speed = speed if isinstance(speed, dict) else {}
    key = "throughput.examples_per_second"
    throughput = read_number(file, key, speed.get("examples_per_second"))
    seconds = read_number(file, "throughput.training_seconds", speed.get("training_seconds"))
    windows = read_number(file, "throughput.training_windows", speed.get("training_windows"))
    saving = sum(speed.get("checkpoint_seconds") or [])
    best = content.get("best") or {}
    config = _config(file.parent / "config.yaml")
    slots = speed.get("slots") or (config.get("resources") or {}).get("slots_per_trial") or 1
    facts = {
        "throughput": throughput,
        "windows": windows,
        "slots": int(slots),
        "exact": best.get("exact"),
        "f1": best.get("f1"),
        "notes": ("training and checkpoints of its last start; validation is not in it",),
        "hardware": "this machine",
    }
    return facts, {"training": seconds / 3600, "checkpoints": saving / 3600}


def _config(file: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    return content if isinstance(content, dict) else {}


def _benchmark(
    file: Path, content: Mapping[str, Any], windows: float | None
) -> tuple[dict[str, Any], dict[str, float]]:
    """As `_local`."""
    value: Any = content
    for key in ("results", "ours", "windows_per_second", "median"):
        value = value.get(key) if isinstance(value, dict) else None
    throughput = read_number(file, "results.ours.windows_per_second.median", value)
    work = windows or EPOCHS * WINDOWS
    device = content.get("device")
    device = device if isinstance(device, dict) else {}
    slots = next((device[key] for key in ("slots", "count", "gpus") if device.get(key)), 1)
    facts = {
        "throughput": throughput,
        "windows": work,
        "slots": int(slots),
        "notes": (f"a benchmark's throughput, projected to {work:,.0f} windows",),
        "hardware": str(device.get("name") or "this machine"),
    }
    return facts, {"training": work / throughput / 3600}


def _priced(run: Run, hours: Mapping[str, float], price: Price, spot: bool) -> Run:
    machines = 1 if run.slots <= price.slots else price.machines(run.slots)
    rate = machines * price.hourly(spot)
    hardware = f"{machines} x {price.instance}"
    return dataclasses.replace(
        run,
        hardware=hardware,
        pool="spot" if spot else "on demand",
        rate=rate,
        cost=rate * run.hours,
        parts={part: rate * value for part, value in hours.items()},
        notes=(*run.notes, f"priced as if it had run on {hardware}"),
    )
