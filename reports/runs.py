"""Published runs, local ones (an output directory) and benchmark results."""

import dataclasses
import json
import math
import re
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from cluster.machines import gpu_of
from detalbert.errors import UserError, first_line
from reports.prices import Price, find
from reports.published import EPOCHS, FINE_TUNING, MODEL, WINDOWS
from reports.run import Run, data_name, model_name

SQUAD = data_name({"train": "rajpurkar/squad_v2"})
# Stages of `python -m benchmarks` that train, and where their throughput stands.
TRAINING = {"step": ("ours", "windows_per_second"), "pretrain": ("one_forward",
            "sequences_per_second")}  # fmt: skip


def published_runs(prices: Mapping[str, Price]) -> list[Run]:
    """The published fine-tuning runs, priced with `prices`."""
    runs = []
    for row in FINE_TUNING:
        run = Run(
            name=f"published, {row.slots} GPU" + ("s" if row.slots > 1 else ""),
            hardware="", pool="", slots=row.slots, throughput=row.throughput, hours=row.hours,
            windows=EPOCHS * WINDOWS, model=model_name(MODEL), data=SQUAD, exact=row.exact,
            f1=row.f1, notes=("no cost was published for it",) if row.slots == 8 else (),
        )  # fmt: skip
        runs.append(_priced(run, {"training": row.hours}, find(prices, row.instance), row.spot))
    return runs


def read_run(text: str, prices: Mapping[str, Price], windows: float | None) -> Run:
    """`PATH`, `PATH@INSTANCE` or `PATH@INSTANCE:spot`; PATH is an output directory or a JSON file.

    `windows` is the work that a benchmark's throughput is projected to.
    Raises UserError for a file that cannot be read or is no training.
    """
    path, at, machine = text.rpartition("@")
    path, machine = (path, machine) if at else (text, "")
    instance, _, market = machine.partition(":")
    if market not in ("", "spot", "on-demand"):
        raise UserError(f"--run: {market!r} after the instance; expected spot or on-demand")
    price = find(prices, instance) if machine else None
    file = Path(path) / "metrics.json" if Path(path).is_dir() else Path(path)
    content = read_json(file)
    benchmark = "results" in content or "stage" in content
    run, hours = (_benchmark if benchmark else _local)(path, file, content, windows)
    if price is None:
        return run
    as_if = f"priced as if it had run on {price.instance}"
    run = dataclasses.replace(run, notes=(*run.notes, as_if))
    gpu = gpu_of(price.instance)
    if benchmark and not (gpu and re.search(rf"\b{gpu.name}\b", run.hardware)):
        run = dataclasses.replace(run, elsewhere=f"measured on {run.hardware}, not {instance}")
    return _priced(run, hours, price, market == "spot")


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object. Raises UserError naming the file for anything else."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(
            f"{file}: cannot read it ({first_line(error)}); give the directory of a finished run, "
            "or a benchmark's JSON"
        ) from None
    except (ValueError, RecursionError):
        raise UserError(f"{file}: not JSON; give metrics.json or a benchmark's result") from None
    if not isinstance(content, dict):
        raise UserError(f"{file}: expected a JSON object")
    return content


def read_number(file: Path, where: str, value: Any, zero: bool = False) -> float:
    """A figure above 0, or from 0 on. Raises UserError naming the file for what is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise UserError(f"{file}: {where}: no number there (found {value!r:.40}); run it anew")
    if value < 0 or (value == 0 and not zero):
        raise UserError(f"{file}: {where}: {value:g} must be greater than 0")
    return float(value)


def _mapping(file: Path, where: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value or {}, dict):
        raise UserError(f"{file}: {where}: expected keys and values, found {value!r:.40}")
    return value or {}


def _local(
    path: str, file: Path, content: Mapping[str, Any], _: float | None
) -> tuple[Run, dict[str, float]]:
    """A run, and its hours by what they were for."""
    speed, best, last = (_mapping(file, k, content.get(k)) for k in ("throughput", "best", "last"))
    rate, trained, windows = (
        read_number(file, f"throughput.{key}", speed.get(key))
        for key in ("examples_per_second", "training_seconds", "training_windows")
    )
    saving = speed.get("checkpoint_seconds") or []
    if not isinstance(saving, list):
        raise UserError(f"{file}: throughput.checkpoint_seconds: expected a list of seconds")
    saved = sum(read_number(file, "throughput.checkpoint_seconds", s, True) for s in saving)
    settings = file.parent / "config.yaml"
    config = _config(settings)
    hparams = _mapping(settings, "hyperparameters", config.get("hyperparameters"))
    slots = _mapping(settings, "resources", config.get("resources")).get("slots_per_trial") or 1
    batch = hparams.get("global_batch_size")
    if last.get("steps") and isinstance(batch, int):
        windows = read_number(file, "last.steps", last["steps"]) * batch
    worked, hours, starts, note = _clock(settings, file, (trained + saved) / 3600)
    tokens = speed.get("tokens_per_second")
    run = Run(
        name=path, hardware="this machine", pool="local", hours=hours, worked=worked,
        slots=int(read_number(settings, "resources.slots_per_trial", slots)), windows=windows,
        throughput=rate, model=model_name(hparams.get("model")), notes=(note,),
        data=data_name(_mapping(settings, "data", config.get("data"))),
        tokens=read_number(file, "throughput.tokens_per_second", tokens) / rate if tokens else None,
        stops={"restarted": starts - 1} if starts > 1 else {},
        exact=_score(file, best, "exact"), f1=_score(file, best, "f1"),
    )  # fmt: skip
    training = min(windows / rate / 3600, worked)
    return run, {"training": training, "start-up, validation, checkpoints": worked - training}


def _score(file: Path, best: Mapping[str, Any], key: str) -> float | None:
    return None if best.get(key) is None else read_number(file, f"best.{key}", best[key], True)


def _clock(settings: Path, metrics: Path, least: float) -> tuple[float, float, int, str]:
    """Hours of work and from first to last, starts, and a note.

    Each start writes an event file from its first report on; config.yaml is as old as the last
    start, so the time between the two is the start-up, which the earlier starts had as well. The
    last checkpoint comes after the last event, and metrics.json after that.
    """
    files = settings.parent.glob("tensorboard/events.out.tfevents.*")
    starts = sorted((times[0], times[-1]) for file in files if (times := list(_times(file))))
    if not starts:
        return least, least, 1, "training and checkpoints of its last start; its events are gone"
    first, last = starts[-1]
    ahead = first - settings.stat().st_mtime if settings.exists() else -1.0
    after = metrics.stat().st_mtime - last
    note = f"{len(starts)} starts, validation and checkpoints counted"
    note += ", start-up too" if 0 < ahead < 3600 else "; start-up is not known: a copied folder"
    ahead, after = (value if 0 < value < 3600 else 0.0 for value in (ahead, after))
    worked = sum(end - start + ahead for start, end in starts) + after
    whole = max(end for _, end in starts) + after - starts[0][0] + ahead
    return max(worked / 3600, least), max(whole / 3600, least), len(starts), note


def _times(file: Path) -> Iterator[float]:
    """Unix time of each event: records of length, checksum, event, checksum; its first field."""
    data, at = file.read_bytes(), 0
    while at + 21 <= len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        if data[at + 12] == 0x09:  # field 1, eight bytes: wall_time
            yield struct.unpack_from("<d", data, at + 13)[0]
        at += length + 16


def _config(file: Path) -> Mapping[str, Any]:
    try:
        return _mapping(file, "all", yaml.safe_load(file.read_text(encoding="utf-8")))
    except OSError:
        return {}
    except (ValueError, yaml.YAMLError):
        raise UserError(f"{file}: not YAML; it is what train.py wrote there") from None


def _benchmark(
    path: str, file: Path, content: Mapping[str, Any], windows: float | None
) -> tuple[Run, dict[str, float]]:
    """As `_local`."""
    stage = str(content.get("stage"))
    if stage not in TRAINING:
        known = " or ".join(TRAINING)
        raise UserError(f"{file}: stage {stage[:20]!r} is no training; give {known}")
    side, rate = TRAINING[stage]
    value: Any = content
    for key in ("results", side, rate, "median"):
        value = value.get(key) if isinstance(value, dict) else None
    throughput = read_number(file, f"results.{side}.{rate}.median", value)
    work = windows or EPOCHS * WINDOWS
    device, settings = (_mapping(file, key, content.get(key)) for key in ("device", "settings"))
    slots = read_number(file, "device.count", device.get("count", 1))
    tokens = settings.get("tokens_per_window")
    run = Run(
        name=path, pool="local", hours=work / throughput / 3600, throughput=throughput,
        hardware=str(device.get("name") or "a machine not named"), windows=work, slots=int(slots),
        model=model_name(f"albert-{settings.get('shape')}"),
        data=SQUAD if stage == "step" else "text",
        tokens=tokens and read_number(file, "settings.tokens_per_window", tokens),
        notes=(f"a benchmark's throughput, projected to {work:,.0f} windows",),
    )  # fmt: skip
    return run, {"training": run.hours}


def _priced(run: Run, hours: Mapping[str, float], price: Price, spot: bool) -> Run:
    machines = 1 if run.slots <= price.slots else price.machines(run.slots)
    worked = machines * sum(hours.values())
    low, middle, high = price.spot_range() if spot else [price.on_demand] * 3
    return dataclasses.replace(
        run, hardware=f"{machines} x {price.instance}", pool="spot" if spot else "on demand",
        rate=machines * middle, cost=worked * middle, low=worked * low, high=worked * high,
        on_demand=worked * price.on_demand,
        parts={part: machines * middle * value for part, value in hours.items()},
    )  # fmt: skip
