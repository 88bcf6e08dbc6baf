"""One run of a workload, from any source: published runs, an output directory, a benchmark."""

import json
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from cluster.facts.machines import SLOTS, gpu_of
from cluster.facts.prices import Price, find_price
from cluster.facts.published import EPOCHS, FINE_TUNING, MODEL, WINDOWS
from detalbert import bucket
from detalbert.errors import UserError, first_line
from detalbert.settings.yaml_files import read_yaml

SCHEMAS = read_yaml(Path(__file__).with_name("results.yaml"))
FILES = "metrics.json", "config.yaml"  # that are read of a run
CURE = "give a run of a training, or a benchmark's step of finetuning or pretraining"
SAME_WORK = 0.05  # windows of two preprocessings of the same data differ by a per cent


@dataclass(frozen=True, kw_only=True)
class Run:
    """Facts that the reports show of a run; None: unknown. Costs are prices x machine-hours."""

    name: str
    hardware: str  # 8 x p3.16xlarge
    slots: int
    pool: str  # on demand, spot, or a cluster's pool
    windows: float  # trained on and kept
    hours: float  # from the first start to the last end, pauses included
    worked: float | None = None  # hours in which machines were held; None: `hours`
    lost_hours: float | None = None
    throughput: float | None = None  # windows per second
    stops: Mapping[str, int] | None = None  # interruptions by kind
    rate: float | None = None  # dollars per hour of work, all machines
    cost: float | None = None
    low: float | None = None  # the cost at the lowest spot price seen,
    high: float | None = None  # and at the highest
    on_demand: float | None = None  # the same hours, on demand
    stopped: float | None = None  # dollars of lost work, boots, idle machines and restarts
    exact: float | None = None
    f1: float | None = None
    best: Mapping[str, float | None] = field(default_factory=dict)  # the best validation's scores
    steps: float = 0  # at the last validation
    config: Mapping[str, Any] = field(default_factory=dict)  # of local runs
    model: str | None = None
    data: str | None = None
    tokens: float | None = None  # of a window, padding left out
    spent: Mapping[str, float] = field(default_factory=dict)  # hours by purpose, for `_priced`
    parts: Mapping[str, float] = field(default_factory=dict)  # dollars by what they paid for
    notes: tuple[str, ...] = ()
    running: bool = False
    unpriced: float = 0.0  # machine-hours that are not in the dollars
    elsewhere: str = ""  # where it was measured, if not on its hardware

    def unlike(self, base: "Run") -> str:
        """Return why the two runs cannot be compared; empty if they can."""
        if self is base:
            return self.elsewhere
        if not self.windows and self.model is None:
            return "it trained nothing"
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
            exact=row.exact, f1=row.f1, spent={"training": row.hours},
            notes=("no cost was published for it",) if row.slots == 8 else (),
        )  # fmt: skip
        price = prices.get(row.instance)
        runs.append(_priced(run, price, row.spot) if price else _unpriced(run, row.instance))
    return runs


def read_runs(
    texts: Sequence[str], prices: Mapping[str, Price], windows: float | None
) -> tuple[list[Run], list[str]]:
    """Read each `PATH`, `PATH@INSTANCE` or `PATH@INSTANCE:spot`: an output directory or a folder of
    them, here or in a bucket, or a JSON file. Return the runs, and why others are left out. Raises
    UserError if a path has no run of a training, Unavailable if a bucket does not answer.
    `windows` is the work to which a benchmark's throughput is projected.
    """
    runs, notes = list[Run](), list[str]()
    for text in texts:
        before, at, name = text.rpartition("@")
        path, machine = (before, machine_of("--run", name, prices)) if at else (text, None)
        with tempfile.TemporaryDirectory() as copy:
            if remote := bucket.is_bucket(path):
                bucket.download(path, Path(copy), lambda f: f.count("/") < 2 and f.endswith(FILES))
            place = Path(copy if remote else path)
            inside = sorted(file.parent for file in place.glob("*/metrics.json"))
            one = not inside or (place / "metrics.json").exists()
            for folder in [place] if one else inside:
                name = path if one else f"{path.rstrip('/')}/{folder.name}"
                try:
                    runs.append(_read(folder, name, machine, windows))
                except UserError as error:
                    notes.append(str(error).replace(copy, path.rstrip("/")))
                    if one or (folder == inside[-1] and not runs):
                        raise UserError(notes[-1]) from None
    return runs, notes


def _read(place: Path, name: str, machine: Any, windows: float | None) -> Run:
    """Read the run `name` at `place`, priced as if it had run on `machine`."""
    file = place / "metrics.json" if place.is_dir() else place
    try:
        found = json.loads(file.read_text(encoding="utf-8"), parse_constant=str)
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{file}: cannot read it ({first_line(error)}); {CURE}") from None
    benchmark = isinstance(found, dict) and not found.keys().isdisjoint(("results", "stage"))
    _check(file, "benchmark" if benchmark else "metrics", found)
    run = _benchmark(name, found, windows) if benchmark else _local(name, file, found)
    if machine is None:
        return run
    instance = machine[0].instance
    run = replace(run, notes=(*run.notes, f"priced as if it had run on {instance}"))
    gpu = gpu_of(instance)
    if benchmark and not (gpu and re.search(rf"\b{gpu.name}\b", run.hardware)):
        run = replace(run, elsewhere=f"measured on {run.hardware}, not {instance}")
    return _priced(run, *machine)


def machine_of(flag: str, text: str, prices: Mapping[str, Price]) -> tuple[Price, bool]:
    """Parse INSTANCE or INSTANCE:spot: return its price, and whether it is on spot."""
    instance, _, market = text.partition(":")
    if market not in ("", "spot", "on-demand"):
        raise UserError(f"{flag} {text}: expected INSTANCE, INSTANCE:spot or INSTANCE:on-demand")
    return find_price(prices, instance), market == "spot"


def _check(file: Path, kind: str, content: Any) -> None:
    """Raise UserError, naming file and key, unless `content` is as results.yaml describes it."""
    error = best_match(Draft202012Validator(SCHEMAS[kind]).iter_errors(content))
    if error is not None:
        where = ".".join(map(str, error.absolute_path)) or "the file"
        said = error.message  # of a long value, the end says what is wrong
        said = said if len(said) <= 150 else f"{said[:30]}...{said[-100:]}"
        raise UserError(f"{file}: {where}: {said}; {CURE}")


def _local(path: str, file: Path, found: Any) -> Run:
    best, last = (found.get(key) or {} for key in ("best", "last"))
    speed, config_file = found["throughput"], file.parent / "config.yaml"
    config = read_yaml(config_file) if config_file.exists() else {}
    _check(config_file, "config", config)
    names = "hyperparameters", "resources", "data"
    hparams, resources, data = (config.get(name) or {} for name in names)
    rate = speed["examples_per_second"]
    steps = (last.get("steps") or 0) * (hparams.get("global_batch_size") or 0)
    windows = steps or speed["training_windows"]
    least = (speed["training_seconds"] + sum(speed.get("checkpoint_seconds") or [])) / 3600
    worked, hours, starts, note = _hours(file, speed.get("starts"), least)
    training = min(windows / rate / 3600, worked)
    return Run(
        name=path, hardware="this machine", pool="local", hours=hours, worked=worked,
        slots=int(resources.get("slots_per_trial") or 1), windows=windows, throughput=rate,
        model=model_name(hparams.get("model")), data=data_name(data), notes=(note,),
        tokens=(speed.get("tokens_per_second") or 0) / rate or None, config=config, best=best,
        stops={"restarted": starts - 1} if starts > 1 else None, steps=last.get("steps") or 0,
        exact=best.get("exact"), f1=best.get("f1"),
        spent={"training": training, "start-up, validation, checkpoints": worked - training},
    )  # fmt: skip


def _hours(file: Path, starts: Any, least: float) -> tuple[float, float, int, str]:
    """Return hours of work and elapsed hours, both at least `least`, starts, and a note on them."""
    if not starts:
        return least, least, 1, "training and checkpoints of its last start; its times are unknown"
    try:
        times = [[datetime.fromisoformat(one[key]) for key in ("start", "end")] for one in starts]
        worked = sum((end - start).total_seconds() for start, end in times)
        whole = (times[-1][1] - times[0][0]).total_seconds()
    except (TypeError, ValueError):  # TypeError: one with a time zone, and one without
        said = f"{starts!r:.80} is not a list of start and end times"
        raise UserError(f"{file}: throughput.starts: {said}; {CURE}") from None
    note = f"{len(starts)} starts, start-up, validation and checkpoints counted"
    return max(worked / 3600, least), max(whole / 3600, least), len(starts), note


def _benchmark(path: str, found: Any, windows: float | None) -> Run:
    settings, device = (found.get(key) or {} for key in ("settings", "device"))
    workload = settings.get("workload") or "finetuning"
    throughput = found["results"]["ours"]["windows_per_second"]["median"]
    work = windows or EPOCHS * WINDOWS
    hours = work / throughput / 3600
    return Run(
        name=path, pool="local", hours=hours, throughput=throughput, windows=work,
        hardware=str(device.get("name") or "a machine not named"),
        slots=int(device.get("count") or 1), data=TRAINING[workload],
        model=model_name(f"albert-{settings.get('shape')}"),
        tokens=settings.get("tokens_per_window"), spent={"training": hours},
        notes=(f"a benchmark's throughput, projected to {work:,.0f} windows",),
    )  # fmt: skip


def _priced(run: Run, price: Price, spot: bool) -> Run:
    machines = price.machines(run.slots)
    worked = machines * sum(run.spent.values())
    low, middle, high = price.spot_range() if spot else [price.on_demand] * 3
    return replace(
        run, hardware=f"{machines} x {price.instance}", pool="spot" if spot else "on demand",
        rate=machines * middle, cost=worked * middle, low=worked * low, high=worked * high,
        on_demand=worked * price.on_demand,
        parts={part: machines * middle * hours for part, hours in run.spent.items()},
    )  # fmt: skip


def _unpriced(run: Run, instance: str) -> Run:
    """Return a run on machines that have no price in the region that was asked for."""
    machines = -(-run.slots // (SLOTS.get(instance) or run.slots))
    note = f"{instance} has no price there"
    hardware = f"{machines} x {instance}"
    return replace(run, hardware=hardware, unpriced=machines * run.hours, notes=(note,))
