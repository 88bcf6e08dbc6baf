"""One run of a workload, from any source: published runs, an output directory, a benchmark."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, replace
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from cluster import goyaml
from cluster.machines import gpu_of
from cluster.prices import Price, find_price
from cluster.published import EPOCHS, FINE_TUNING, MODEL, WINDOWS
from detalbert.errors import UserError, first_line

SAME_WORK = 0.05  # windows of two preprocessings of the same data differ by a per cent


def _shown(head: str, style: str = "", default: Any = None) -> Any:
    """Return a field that has a column: its head, and the format of its numbers."""
    return field(default=default, metadata={"head": head, "style": style})


@dataclass(frozen=True, kw_only=True)
class Run:
    """Facts that the reports show of a run; None: unknown. Costs are prices x machine-hours."""

    name: str = _shown("run", default=MISSING)
    hardware: str = _shown("hardware", default=MISSING)  # 8 x p3.16xlarge
    slots: int = _shown("slots", "{}", MISSING)
    pool: str = _shown("pool", default=MISSING)  # on demand, spot, or a cluster's pool
    throughput: float | None = _shown("windows/s", "{:,.2f}")
    # From the first start to the last end, pauses included.
    hours: float = _shown("elapsed h", "{:,.2f}", MISSING)
    worked: float | None = _shown("worked h", "{:,.2f}")  # machines were held; None: `hours`
    lost_hours: float | None = _shown("lost h", "{:,.2f}")
    stops: Mapping[str, int] | None = _shown("stops", "{}")  # interruptions by kind
    rate: float | None = _shown("$/hour", "${:,.2f}")  # of work, all machines
    cost: float | None = _shown("cost", "${:,.2f}")
    low: float | None = _shown("low", "${:,.2f}")  # the cost at the lowest spot price seen,
    high: float | None = _shown("high", "${:,.2f}")  # and at the highest
    on_demand: float | None = _shown("on demand", "${:,.2f}")  # the same hours, on demand
    stopped: float | None = _shown("interruptions", "${:,.2f}")  # lost, boot, idle, restart
    exact: float | None = _shown("EM", "{:,.2f}")
    f1: float | None = _shown("F1", "{:,.2f}")
    windows: float  # trained on and kept
    model: str | None = None
    data: str | None = None
    tokens: float | None = None  # of a window, padding left out
    parts: Mapping[str, float] = field(default_factory=dict)  # dollars by what they paid for
    notes: tuple[str, ...] = ()
    running: bool = False
    elsewhere: str = ""  # where it was measured, if not on its hardware

    def unlike(self, base: "Run") -> str:
        """Return why the two runs cannot be compared; empty if they can."""
        if self is base:
            return self.elsewhere
        reasons = [f"{run.name} still runs" for run in (self, base) if run.running]
        reasons += [run.elsewhere for run in (self, base) if run.elsewhere]
        for what in ("model", "data"):
            mine, its = getattr(self, what), getattr(base, what)
            if mine != its:
                reasons.append(f"another {what} ({mine or 'not known'}, not {its or 'known'})")
        if abs(self.windows - base.windows) > SAME_WORK * base.windows:
            reasons.append(f"other work ({self.windows:,.0f} windows, not {base.windows:,.0f})")
        return "; ".join(dict.fromkeys(reasons))


def model_name(name: object) -> str | None:
    """Return a model's common name: albert/albert-xxlarge-v2 gives albert-xxlarge."""
    return re.sub(r"-v\d+$", "", PurePosixPath(str(name)).name.lower()) if name else None


def data_name(data: Mapping[str, object]) -> str | None:
    """Return the name of the data; SQuAD 2.0 has two, and a file's first part is other data."""
    train, first = data.get("train") or data.get("text"), data.get("max_train_examples")
    if not isinstance(train, str):
        return None
    name = "SQuAD 2.0" if re.search(r"squad_v2$|train-v2\.0\.json$", train) else train
    return f"{name}, first {first}" if first else name


# Workloads of `python -m benchmarks step` whose throughput is in windows, and their data.
TRAINING = {"finetuning": "SQuAD 2.0", "pretraining": "text"}


def published_runs(prices: Mapping[str, Price]) -> list[Run]:
    """Return the published fine-tuning runs, priced with `prices`."""
    runs = []
    for row in FINE_TUNING:
        run = Run(
            name=f"published, {row.slots} GPU" + ("s" if row.slots > 1 else ""),
            hardware="", pool="", slots=row.slots, throughput=row.throughput, hours=row.hours,
            windows=EPOCHS * WINDOWS, model=model_name(MODEL), data=TRAINING["finetuning"],
            exact=row.exact, f1=row.f1,
            notes=("no cost was published for it",) if row.slots == 8 else (),
        )  # fmt: skip
        runs.append(
            _priced(run, {"training": row.hours}, find_price(prices, row.instance), row.spot)
        )
    return runs


def read_run(text: str, prices: Mapping[str, Price], windows: float | None) -> Run:
    """Read `PATH`, `PATH@INSTANCE` or `PATH@INSTANCE:spot`, an output directory or a JSON file.

    `windows` is the work to which a benchmark's throughput is projected. Raises UserError if a file
    cannot be read or is not of a training.
    """
    before, at, name = text.rpartition("@")
    path, machine = (before, machine_of("--run", name, prices)) if at else (text, None)
    found = Document.read(Path(path) / "metrics.json" if Path(path).is_dir() else Path(path))
    benchmark = "results" in found.content or "stage" in found.content
    run, hours = _benchmark(path, found, windows) if benchmark else _local(path, found)
    if machine is None:
        return run
    instance = machine[0].instance
    run = replace(run, notes=(*run.notes, f"priced as if it had run on {instance}"))
    gpu = gpu_of(instance)
    if benchmark and not (gpu and re.search(rf"\b{gpu.name}\b", run.hardware)):
        run = replace(run, elsewhere=f"measured on {run.hardware}, not {instance}")
    return _priced(run, hours, *machine)


def machine_of(flag: str, text: str, prices: Mapping[str, Price]) -> tuple[Price, bool]:
    """Parse INSTANCE or INSTANCE:spot: return its price, and whether it is on spot."""
    instance, _, market = text.partition(":")
    if market not in ("", "spot", "on-demand"):
        raise UserError(f"{flag} {text}: expected INSTANCE, INSTANCE:spot or INSTANCE:on-demand")
    return find_price(prices, instance), market == "spot"


class Document(NamedTuple):
    """The mapping in a JSON or YAML file; errors name the file and the dotted key."""

    file: Path
    content: dict[str, Any]

    @classmethod
    def read(cls, file: Path) -> "Document":
        """Read a file. Raises UserError if it cannot be read or holds no mapping."""
        if file.suffix == ".yaml":
            return cls(file, goyaml.load(file))
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
        except OSError as error:
            wanted = "the directory of a finished run, or a benchmark's JSON"
            said = f"cannot read it ({first_line(error)})"
            raise UserError(f"{file}: {said}; give {wanted}") from None
        except (ValueError, RecursionError):
            content = None
        if not isinstance(content, dict):
            raise UserError(f"{file}: no keys and values; give what a run or a benchmark wrote")
        return cls(file, content)

    def at(self, where: str, kind: Any = object) -> Any:
        """Return the value at a dotted key, None if missing; check that it is of `kind`."""
        value: Any = self.content
        *path, last = where.split(".")
        for key, wanted in [*((key, dict) for key in path), (last, kind)]:
            value = value.get(key)
            if value is None:
                return None
            if not isinstance(value, wanted):
                raise UserError(f"{self.file}: {where}: {value!r:.40} there is wrong; run it anew")
        return value

    def optional(self, where: str) -> float | None:
        """Return the number at a key, 0 or more; None if missing."""
        return None if (value := self.at(where)) is None else self.number(where, value, zero=True)

    def number(self, where: str, value: Any = None, zero: bool = False) -> float:
        """Return the number at a key, or `value` from a list there, if more than 0 (or `zero`)."""
        value = self.at(where) if value is None else value
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not math.isfinite(value):
            raise UserError(f"{self.file}: {where}: no number there ({value!r:.40}); run it anew")
        if value < 0 or (value == 0 and not zero):
            raise UserError(f"{self.file}: {where}: {value:g} must be greater than 0")
        return float(value)


def _local(path: str, found: Document) -> tuple[Run, dict[str, float]]:
    """Return a local run, and its hours by purpose."""
    rate, trained, windows = (
        found.number(f"throughput.{key}")
        for key in ("examples_per_second", "training_seconds", "training_windows")
    )
    key, file = "throughput.checkpoint_seconds", found.file.parent / "config.yaml"
    saved = sum(found.number(key, seconds, zero=True) for seconds in found.at(key, list) or [])
    config = Document.read(file) if file.exists() else Document(file, {})
    batch = config.optional("hyperparameters.global_batch_size") or 0
    windows = (found.optional("last.steps") or 0) * batch or windows
    worked, hours, starts, note = _hours(found, (trained + saved) / 3600)
    run = Run(
        name=path, hardware="this machine", pool="local", hours=hours, worked=worked,
        slots=int(config.optional("resources.slots_per_trial") or 1), windows=windows,
        throughput=rate, model=model_name(config.at("hyperparameters.model")), notes=(note,),
        data=data_name(config.at("data", dict) or {}),
        tokens=(found.optional("throughput.tokens_per_second") or 0) / rate or None,
        stops={"restarted": starts - 1} if starts > 1 else None,
        exact=found.optional("best.exact"), f1=found.optional("best.f1"),
    )  # fmt: skip
    training = min(windows / rate / 3600, worked)
    return run, {"training": training, "start-up, validation, checkpoints": worked - training}


def _hours(found: Document, least: float) -> tuple[float, float, int, str]:
    """Return hours of work and elapsed hours, both at least `least`, starts, and a note on them."""
    starts = found.at("throughput.starts", list)
    if not starts:
        return least, least, 1, "training and checkpoints of its last start; its times are unknown"
    try:
        times = [[datetime.fromisoformat(one[key]) for key in ("start", "end")] for one in starts]
        worked = sum((end - start).total_seconds() for start, end in times)
        whole = (times[-1][1] - times[0][0]).total_seconds()
    except (KeyError, TypeError, ValueError):
        raise UserError(
            f"{found.file}: throughput.starts: {starts!r:.80} is not a list of start and end times"
        ) from None
    note = f"{len(starts)} starts, start-up, validation and checkpoints counted"
    return max(worked / 3600, least), max(whole / 3600, least), len(starts), note


def _benchmark(path: str, found: Document, windows: float | None) -> tuple[Run, dict[str, float]]:
    """Return a benchmark's run, and its hours by purpose."""
    stage, workload = str(found.at("stage")), str(found.at("settings.workload") or "finetuning")
    if stage != "step" or workload not in TRAINING:
        said = f"{stage[:20]} {workload[:20]} is no training"
        raise UserError(f"{found.file}: {said}; give a step of {' or '.join(TRAINING)}")
    throughput = found.number("results.ours.windows_per_second.median")
    work = windows or EPOCHS * WINDOWS
    run = Run(
        name=path, pool="local", hours=work / throughput / 3600, throughput=throughput,
        hardware=str(found.at("device.name") or "a machine not named"), windows=work,
        slots=int(found.optional("device.count") or 1), data=TRAINING[workload],
        model=model_name(f"albert-{found.at('settings.shape')}"),
        tokens=found.optional("settings.tokens_per_window"),
        notes=(f"a benchmark's throughput, projected to {work:,.0f} windows",),
    )  # fmt: skip
    return run, {"training": run.hours}


def _priced(run: Run, hours: Mapping[str, float], price: Price, spot: bool) -> Run:
    machines = 1 if run.slots <= price.slots else price.machines(run.slots)
    worked = machines * sum(hours.values())
    low, middle, high = price.spot_range() if spot else [price.on_demand] * 3
    costs: dict[str, Any] = {"rate": machines * middle, "cost": worked * middle}
    costs |= {"low": worked * low, "high": worked * high, "on_demand": worked * price.on_demand}
    parts = {part: machines * middle * value for part, value in hours.items()}
    hardware, pool = f"{machines} x {price.instance}", "spot" if spot else "on demand"
    return replace(run, hardware=hardware, pool=pool, parts=parts, **costs)
