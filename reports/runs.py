"""Runs, of folders and of a master, and the command `runs`: best first, beside what they cost and
the config keys in which they differ.

A run is what its metrics.json holds, with its config, hours and dollars; a trial of a master gets
the same shape. So a column is a dotted key, and one more column is one more row of COLUMNS. Runs
are ranked by the metric of their own searcher, each metric apart: two metrics have no order.
"""

import argparse
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from detalbert.errors import UserError, first_line
from detalbert.settings.yaml_files import read_yaml
from detalbert.sums import load_json
from reports.bill import SUMS, fetch_bill, machine_price
from reports.forms import Row, write
from reports.records import Records

# By head; columns of scores and of config keys stand after them.
COLUMNS = {
    "experiment": "experiment",
    "trial": "trial",
    "run": "name",
    "state": "state",
    "steps": "last.steps",
    "of": "config.hyperparameters.max_steps",
    "best at": "best.steps",
    "starts": "starts",
    "hours": "hours",
    "windows/s": "throughput.examples_per_second",
    "dollars": "dollars",
    "on demand": "on demand",
}
# Keys of a config, of which those are columns in which runs differ.
CONFIG_KEYS = r"^config\.(hyperparameters|data|resources)\."


def run(args: argparse.Namespace) -> int:
    """Report scores, steps, hours, dollars and the config keys that differ."""
    runs, notes = read_runs(args)
    if not runs:
        raise UserError(
            "nothing to report",
            key="runs",
            cure="give RUN, --experiment or --project",
        )
    runs.sort(key=_rank)
    frame = pd.json_normalize(runs)  # a row per run, a column per dotted key
    columns = dict(COLUMNS)
    for name in [*frame.get("config.searcher.metric", []), "f1", "exact"]:
        columns[name] = f"best.{name}"
    for key in _differing_keys(frame):
        columns[key.removeprefix("config.")] = key
    table = pd.DataFrame({head: frame[key] for head, key in columns.items() if key in frame})
    write(args, "Runs, best first", as_rows(table), notes)
    return 0


def _rank(run: Row) -> tuple[bool, str, bool, float]:
    """Return a run's place: by metric, best first; runs without a metric or a score come last."""
    searcher = run["config"].get("searcher") or {}
    metric = searcher.get("metric") or ""
    score = run["best"].get(metric)
    if not isinstance(score, int | float):  # none, or "NaN"
        return not metric, metric, True, 0.0
    is_less_better = searcher.get("smaller_is_better", True)
    return not metric, metric, False, score if is_less_better else -score


def _differing_keys(frame: pd.DataFrame) -> list[str]:
    """Return the config keys in which the runs that have a config differ."""
    keys = frame.filter(regex=CONFIG_KEYS).dropna(how="all").astype(str)
    return [key for key in keys if keys[key].nunique(dropna=False) > 1]


def read_runs(args: argparse.Namespace) -> tuple[list[Row], list[str]]:
    """Return the runs that the flags select, of folders and then of a master, and notes."""
    runs, notes = read_folders(args.run, args.region)
    fetched = fetch_bill(args)
    if fetched is None:
        return runs, notes
    records, frame, bill_notes = fetched
    return runs + trial_runs(records, frame), notes + bill_notes


def trial_runs(records: Records, frame: pd.DataFrame) -> list[Row]:
    """Return the trials that are in a bill."""
    totals = frame[frame["trial"] > 0].groupby("trial")[SUMS].sum(min_count=1)
    return [
        {
            **trial.owner._asdict(),
            "state": trial.state,
            **trial.run,
            **totals.loc[trial.owner.trial],
        }
        for trial in records.trials
        if trial.owner.trial in totals.index
    ]


def read_folders(texts: Sequence[str], region: str) -> tuple[list[Row], list[str]]:
    """Return the runs of each `PATH`, `LABEL=PATH` or `PATH@INSTANCE[:spot]`, the folder of a
    run or of several, and notes on those among several that cannot be read.

    Raises:
        UserError: if a path is no folder of runs.
    """
    runs = list[Row]()
    notes = list[str]()
    for text in texts:
        label, _, path = text.rpartition("=") if not Path(text).exists() else ("", "", text)
        path, _, machine = path.partition("@")
        folders = [Path(path)]
        if not (folders[0] / "metrics.json").exists():
            folders = sorted(file.parent for file in folders[0].glob("*/metrics.json")) or folders
        for folder in folders:
            try:
                run = _read_folder(folder)
            except UserError as error:
                if len(folders) == 1:
                    raise
                notes.append(str(error))
                continue
            if machine:
                run |= _price(run, machine, region)
            runs.append(run | {"series": label})
    return runs, notes


def _read_folder(folder: Path) -> Row:
    """Return the run of a folder. Raises UserError if its files are not those of a run."""
    config = {}
    try:
        metrics = load_json(folder / "metrics.json")
        if (folder / "config.yaml").is_file():
            config = read_yaml(folder / "config.yaml")
        run = {
            "name": str(folder),
            "config": config,
            "best": {},
            "last": {},
            **metrics,
        }
        _rank(run)  # which needs numbers
        return run | _work(metrics["throughput"], config, steps=run["last"].get("steps") or 0)
    except Exception as error:  # whatever is in files that are not those of a run
        raise UserError(
            f"no run in it ({type(error).__name__}: {first_line(error)})",
            key=str(folder),
            cure="give one with metrics.json and config.yaml, or --experiment ID",
        ) from None


def _work(speed: Mapping[str, Any], config: Mapping[str, Any], steps: float) -> Row:
    """Return the slots, hours and windows of all starts of a run, by its throughput."""
    # What the last start measured is the least that all of them took.
    seconds = speed["training_seconds"] + sum(speed.get("checkpoint_seconds") or [])
    starts = speed.get("starts") or []
    begins = pd.to_datetime([start["start"] for start in starts])
    lengths = pd.to_datetime([start["end"] for start in starts]) - begins
    hparams = config.get("hyperparameters") or {}
    windows = steps * (hparams.get("global_batch_size") or 0) or speed["training_windows"]
    if not min(seconds, windows, speed["examples_per_second"]) > 0:
        raise ValueError("it has not trained")
    return {
        "slots": int(speed.get("slots") or 1),
        "starts": len(starts) or 1,
        "hours": max(lengths.sum().total_seconds(), seconds) / 3600,
        "windows": windows,
    }


def _price(run: Row, machine: str, region: str) -> Row:
    """Return the dollars of a run on as many machines as have its slots."""
    price = machine_price(machine, region=region, key=f"{run['name']}@{machine}")
    machine_slots = price.slots or 1
    slots = math.ceil(run["slots"] / machine_slots) * machine_slots
    slot_hours = slots * run["hours"]
    return {
        "machine": machine,
        "dollars": slot_hours * price.dollars,
        "on demand": slot_hours * price.on_demand,
    }


def as_rows(frame: pd.DataFrame) -> list[Row]:
    """Return the rows of a frame: whole numbers as int, and None, which JSON has, for nan."""
    frame = frame.convert_dtypes().astype(object)
    return frame.where(frame.notna(), None).to_dict("records")
