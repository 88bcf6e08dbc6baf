"""One run of a workload, from any source: published runs, an output directory, a benchmark.

A run has parts, and a source fills those that it knows: its work, its bill, its scores. Files of a
run are checked by a schema (results.yaml) before a figure is taken out: a folder of runs may hold
files of other programs, and a wrong figure would go into a sum unseen.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, TypeAlias

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from cluster.facts.machines import SLOTS, gpu_of
from cluster.facts.prices import Price, parse_machine
from cluster.facts.published import EPOCHS, FINE_TUNING, MODEL, WINDOWS
from detalbert.errors import UserError, first_line
from detalbert.settings.values import Config
from detalbert.settings.yaml_files import read_yaml

SCHEMAS = read_yaml(Path(__file__).with_name("results.yaml"))
CURE = "give a run of a training, or a benchmark's step of finetuning or pretraining"
SAME_WORK = 0.05  # windows of two preprocessings of the same data differ by a per cent
# Workloads of `python -m benchmarks step` whose throughput is in windows, and their data.
TRAINING = {"finetuning": "SQuAD 2.0", "pretraining": "text"}

Number: TypeAlias = float | None  # None: unknown
Numbers: TypeAlias = Mapping[str, Number]
Hours: TypeAlias = Mapping[str, float]  # by purpose
Machine: TypeAlias = tuple[Price, bool]  # and whether it is on spot


class Work(NamedTuple):
    """Work of a run, and how long it took."""

    windows: float  # trained on and kept
    hours: float  # from the first start to the last end, pauses included
    worked: Number = None  # hours in which machines were held; None: `hours`
    lost_hours: Number = None
    throughput: Number = None  # windows per second
    stops: Mapping[str, int] | None = None  # interruptions by kind
    tokens: Number = None  # of a window, padding left out
    running: bool = False
    steps: float = 0  # at the last validation
    starts: int = 1

    @property
    def paid_hours(self) -> float:
        return self.worked or self.hours


class Bill(NamedTuple):
    """Dollars that a run cost: prices x machine-hours."""

    cost: Number = None
    low: Number = None  # the cost at the lowest spot price seen,
    high: Number = None  # and at the highest
    on_demand: Number = None  # the same hours, on demand
    rate: Number = None  # per hour of work, all machines
    stopped: Number = None  # lost work, boots, idle machines and restarts
    parts: Numbers = {}  # by what they paid for
    unpriced: float = 0.0  # machine-hours that are not in the dollars


class Run(NamedTuple):
    """Facts that the reports show of a run."""

    name: str
    hardware: str  # 8 x p3.16xlarge
    slots: int
    pool: str  # on demand, spot, or a cluster's pool
    work: Work
    bill: Bill = Bill()
    scores: Numbers = {}  # of the best validation, and its `steps`
    model: str | None = None
    data: str | None = None
    config: Mapping[str, Any] = {}
    notes: tuple[str, ...] = ()
    state: str = ""  # as the master says it
    measured_on_other_hardware: str = ""  # on which, and not on the one that prices it

    def unlike(self, base: "Run") -> str:
        """Return why the two runs cannot be compared; empty if they can."""
        if self is base:
            return self.measured_on_other_hardware
        windows = self.work.windows
        base_windows = base.work.windows
        if not windows and self.model is None:
            return "it trained nothing"
        reasons = [f"{run.name} still runs" for run in (self, base) if run.work.running]
        reasons += [self.measured_on_other_hardware, base.measured_on_other_hardware]
        if self.model != base.model:
            reasons.append(_difference("model", self.model, base.model))
        if self.data != base.data:
            reasons.append(_difference("data", self.data, base.data))
        if abs(windows - base_windows) > SAME_WORK * base_windows:
            reasons.append(f"other work ({windows:,.0f} windows, not {base_windows:,.0f})")
        # Both runs may be measured on the same other hardware: each reason once.
        return "; ".join(reason for reason in dict.fromkeys(reasons) if reason)


def _difference(kind: str, name: str | None, base_name: str | None) -> str:
    return f"another {kind} ({name or 'not known'}, not {base_name or 'known'})"


def model_name(name: object) -> str | None:
    """Return a model's common name: albert/albert-xxlarge-v2 gives albert-xxlarge."""
    if not name:
        return None
    last = PurePosixPath(str(name)).name.lower()
    return re.sub(r"-v\d+$", "", last)


def trained_model(hparams: Mapping[str, Any]) -> str | None:
    """Return the name of the model that hyperparameters train: from a checkpoint, or of a size."""
    size = hparams.get("size")
    return hparams.get("model") or (f"albert-{size}" if size else None)


def data_name(data: Mapping[str, object]) -> str | None:
    """Return the name of the data; SQuAD 2.0 has two, and a file's first part is other data."""
    name = data.get("train") or data.get("text")
    if not isinstance(name, str):
        return None
    if re.search(r"squad_v2$|train-v2\.0\.json$", name):
        name = "SQuAD 2.0"
    first = data.get("max_train_examples")
    return f"{name}, first {first}" if first else name


def published_runs(prices: Mapping[str, Price]) -> list[Run]:
    """Return the published fine-tuning runs, priced with `prices`."""
    runs = []
    for row in FINE_TUNING:
        gpus = "GPU" if row.slots == 1 else "GPUs"
        run = Run(
            name=f"published, {row.slots} {gpus}",
            hardware="",
            slots=row.slots,
            pool="",
            work=Work(windows=EPOCHS * WINDOWS, hours=row.hours, throughput=row.throughput),
            scores={"exact": row.exact, "f1": row.f1},
            model=model_name(MODEL),
            data=TRAINING["finetuning"],
            notes=("no cost was published for it",) if row.slots == 8 else (),
        )
        price = prices.get(row.instance)
        if price:
            run = _priced(run, price, spot=row.spot, hours={"training": row.hours})
        else:
            # Hours without dollars: the total of a report must not pass over them.
            machine_slots = SLOTS.get(row.instance) or row.slots
            machines = -(-row.slots // machine_slots)
            run = run._replace(
                hardware=f"{machines} x {row.instance}",
                bill=Bill(unpriced=machines * row.hours),
                notes=(f"{row.instance} has no price there",),
            )
        runs.append(run)
    return runs


def read_runs(
    texts: Sequence[str], prices: Mapping[str, Price], windows: Number = None
) -> tuple[list[Run], list[str]]:
    """Read each `PATH`, `PATH@INSTANCE` or `PATH@INSTANCE:spot`: an output directory or a folder of
    them, or a JSON file. Return the runs, and why others are left out: among several paths, folders
    of answers, say.

    Args:
        texts: paths to read.
        prices: prices by instance type.
        windows: the work to which a benchmark's throughput is projected.

    Raises:
        UserError: if a path has no run of a training.
    """
    runs = list[Run]()
    notes = list[str]()
    last_error: UserError | None = None
    for text in texts:
        path = text
        machine = None
        if "@" in text:
            path, _, instance = text.rpartition("@")
            machine = parse_machine("--run", instance, prices)
        if ":/" in path:
            raise UserError("not a folder", key=path, cure="mount the bucket, or copy it")

        # A folder is one run, or has runs in it, each with metrics of its own.
        place = Path(path)
        folders = sorted(file.parent for file in place.glob("*/metrics.json"))
        single = not folders or (place / "metrics.json").exists()
        folders += sorted(_answer_folders(place))
        for folder in [place] if single else folders:
            name = path if single else f"{path.rstrip('/')}/{folder.name}"
            try:
                runs.append(_read(folder, name, machine, windows))
            except UserError as error:
                # A path that is not there is a mistake, whatever the others are.
                if single and not place.is_dir():
                    raise
                notes.append(str(error))
                last_error = error
    if last_error is not None and not runs:
        raise last_error
    return runs, notes


def _answer_folders(place: Path) -> Iterator[Path]:
    """Yield the folders in `place` with answers of predict.py, which are no run."""
    for file in place.glob("*/predictions.json"):
        if not (file.parent / "metrics.json").exists():
            yield file.parent


def _read(place: Path, name: str, machine: Machine | None, windows: Number) -> Run:
    """Read the run `name` at `place`, priced as if it had run on `machine`."""
    file = place / "metrics.json" if place.is_dir() else place
    if place.is_dir() and (place / "predictions.json").exists() and not file.exists():
        raise UserError("answers, and not a run: passed over", key=name, cure=CURE)
    try:
        content = json.loads(file.read_text(encoding="utf-8"), parse_constant=str)
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"cannot read it ({first_line(error)})", key=str(file), cure=CURE) from None

    # A benchmark's result, or the metrics of a training.
    is_benchmark = isinstance(content, dict) and ("results" in content or "stage" in content)
    if is_benchmark:
        _check(file, kind="benchmark", content=content)
        run, purposes = _benchmark(name, content, windows)
    else:
        _check(file, kind="metrics", content=content)
        run, purposes = _local(name, file, content)
    if machine is None:
        return run

    # A benchmark names its device: its speed on another one is a guess, which is not compared.
    price, spot = machine
    gpu = gpu_of(price.instance)
    same_gpu = gpu is not None and re.search(rf"\b{gpu.name}\b", run.hardware)
    if is_benchmark and not same_gpu:
        reason = f"measured on {run.hardware}, not {price.instance}"
        run = run._replace(measured_on_other_hardware=reason)
    note = f"priced as if it had run on {price.instance}"
    run = run._replace(notes=(*run.notes, note))
    return _priced(run, price, spot=spot, hours=purposes)


def _check(file: Path, kind: str, content: object) -> None:
    """Raise UserError, naming file and key, unless `content` is as results.yaml describes it."""
    error = best_match(Draft202012Validator(SCHEMAS[kind]).iter_errors(content))
    if error is not None:
        path = [str(step) for step in error.absolute_path]
        key = ".".join(path) or "the file"
        problem = error.message
        if len(problem) > 150:  # of a long value, the end says what is wrong
            problem = f"{problem[:30]}...{problem[-100:]}"
        raise UserError(problem, key=f"{file}: {key}", cure=CURE)


def _local(name: str, file: Path, content: Config) -> tuple[Run, Hours]:
    """Return the run of an output directory, and its hours by purpose."""
    config_file = file.parent / "config.yaml"
    config = read_yaml(config_file) if config_file.exists() else {}
    _check(config_file, kind="config", content=config)
    hparams = config.get("hyperparameters") or {}
    resources = config.get("resources") or {}

    # Windows of all starts: by steps, or where no validation has counted these, of the last start.
    last_validation = content.get("last") or {}
    steps = last_validation.get("steps") or 0
    speed = content["throughput"]
    rate = speed["examples_per_second"]
    batch = hparams.get("global_batch_size") or 0
    windows = steps * batch or speed["training_windows"]

    # What the last start measured is the least that all of them took.
    min_seconds = speed["training_seconds"] + sum(speed.get("checkpoint_seconds") or [])
    starts = speed.get("starts") or []
    worked, hours = _hours(file, starts, min_hours=min_seconds / 3600)
    training = min(windows / rate / 3600, worked)
    note = "training and checkpoints of its last start; its times are unknown"
    if starts:
        note = f"{len(starts)} starts, start-up, validation and checkpoints counted"
    run = Run(
        name=name,
        hardware="this machine",
        slots=int(speed.get("slots") or resources.get("slots_per_trial") or 1),
        pool="local",
        work=Work(
            windows=windows,
            hours=hours,
            worked=worked,
            throughput=rate,
            stops={"restarted": len(starts) - 1} if len(starts) > 1 else None,
            tokens=(speed.get("tokens_per_second") or 0) / rate or None,
            steps=steps,
            starts=len(starts) or 1,
        ),
        scores=content.get("best") or {},
        model=model_name(trained_model(hparams)),
        data=data_name(config.get("data") or {}),
        config=config,
        notes=(note,),
    )
    return run, {"training": training, "start-up, validation, checkpoints": worked - training}


def _hours(file: Path, starts: Sequence[Config], min_hours: float) -> tuple[float, float]:
    """Return hours of work and elapsed hours of all starts, both at least `min_hours`."""
    worked_seconds = 0.0
    elapsed_seconds = 0.0
    try:
        for start in starts:
            end = datetime.fromisoformat(start["end"])
            worked = end - datetime.fromisoformat(start["start"])
            elapsed = end - datetime.fromisoformat(starts[0]["start"])
            worked_seconds += worked.total_seconds()
            elapsed_seconds = elapsed.total_seconds()
    except (TypeError, ValueError):  # TypeError: one with a time zone, and one without
        raise UserError(
            f"{starts!r:.80} is not a list of start and end times",
            key=f"{file}: throughput.starts",
            cure=CURE,
        ) from None
    return max(worked_seconds / 3600, min_hours), max(elapsed_seconds / 3600, min_hours)


def _benchmark(name: str, content: Config, windows: Number) -> tuple[Run, Hours]:
    """Return the run of a benchmark, projected to `windows`, and its hours by purpose."""
    settings = content.get("settings") or {}
    device = content.get("device") or {}
    throughput = content["results"]["ours"]["windows_per_second"]["median"]
    windows = windows or EPOCHS * WINDOWS
    hours = windows / throughput / 3600
    tokens = settings.get("tokens_per_window")
    run = Run(
        name=name,
        hardware=str(device.get("name") or "a machine not named"),
        slots=int(device.get("count") or 1),
        pool="local",
        work=Work(windows=windows, hours=hours, throughput=throughput, tokens=tokens),
        model=model_name(f"albert-{settings.get('shape')}"),
        data=TRAINING[settings.get("workload") or "finetuning"],
        notes=(f"a benchmark's throughput, projected to {windows:,.0f} windows",),
    )
    return run, {"training": hours}


def _priced(run: Run, price: Price, spot: bool, hours: Hours) -> Run:
    """Return the run at a price; `hours` are those of all its machines, by purpose."""
    machines = price.machines(run.slots)
    low, usual, high = price.hourly_range(spot)
    rate = machines * usual  # dollars per hour
    worked = machines * sum(hours.values())
    return run._replace(
        hardware=f"{machines} x {price.instance}",
        pool="spot" if spot else "on demand",
        bill=Bill(
            cost=worked * usual,
            low=worked * low,
            high=worked * high,
            on_demand=worked * price.on_demand,
            rate=rate,
            parts={part: rate * spent for part, spent in hours.items()},
        ),
    )
