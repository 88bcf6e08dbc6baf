"""The command `scaling`: throughput of N GPUs or machines relative to N times that of one.

A series is of one model and one data set on one kind of machine with one number of loader workers;
runs that differ in model or data are refused rather than joined, as their ratio would be no
efficiency. Published series of equal examples stand below every measured one, to compare with.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from cluster.facts.published import FINE_TUNING, SERIES
from cluster.facts.rates import Rates
from detalbert.errors import UserError
from reports import bills
from reports.ledger import fetch_ledger
from reports.report import METHOD, Report, Table
from reports.run import SAME_WORK, Number, Run, read_runs
from reports.usage import Selection

UNIT = "windows/s over slots"
# Columns without --wide.
NARROW = {
    "series": "series",
    "source": "source",
    "N": "N",
    "seconds": "seconds",
    "through-\nput": "throughput",
    "speed-\nup": "speed-up",
    "effi-\nciency": "efficiency",
}


class SeriesPoint(NamedTuple):
    """A measurement of a series."""

    series: str
    source: str  # measured or published
    size: int  # GPUs or machines
    throughput: float  # of all of them
    windows: Number = None  # that were trained on
    name: str = ""  # of the run


def run(args: argparse.Namespace) -> Report:
    """Report time, speed-up and efficiency over slots, measured and published.

    Raises:
        UserError: if runs do not belong to one series, or have no throughput yet.
    """
    # Prices are read for RUN@INSTANCE alone: this report has no dollars.
    rates = Rates(path=args.prices)
    local_runs, left_out = _local_runs(args.run, rates)
    runs = [*local_runs, *_trial_runs(args, rates)]
    points = [*_measured_points(runs)]
    points += _published_points(all_series=args.published, beside=bool(points))
    if not points:
        raise UserError(
            "nothing to report", key="scaling", cure="give RUN, --experiment or --published"
        )
    table, notes = _efficiencies(points)
    return Report(
        title="How throughput scales",
        tables=[Table("Scaling", frame=table, narrow=NARROW)],
        method=METHOD["scaling"],
        notes=[*left_out, *notes],
    )


def _efficiencies(points: list[SeriesPoint]) -> tuple[pd.DataFrame, list[str]]:
    """Return the measurements with their efficiency, and notes on those that have none.

    Raises:
        UserError: if a series has two throughputs for one size.
    """
    table = pd.DataFrame(points, columns=["series", "source", "N", "throughput", "windows", "run"])
    repeated = table[table.duplicated(["series", "N"])]
    if len(repeated):
        name, size = repeated[["series", "N"]].iloc[0]
        raise UserError(
            f"two throughputs for {size}", key=name, cure="name the series apart, LABEL=PATH"
        )

    # Series in order of appearance, each by N; its first point has 100 %.
    by_series = table.groupby("series", sort=False)
    table = pd.concat(rows.sort_values("N") for _, rows in by_series)
    first = table.groupby("series", sort=False)[["N", "throughput", "windows"]].transform("first")
    table["seconds"] = table["windows"] / table["throughput"]
    table["speed-up"] = table["throughput"] / first["throughput"]
    table["efficiency"] = table["speed-up"] / (table["N"] / first["N"])

    # Runs of other lengths spend other parts of their time on start and end.
    difference = (table["windows"] - first["windows"]).abs()
    unequal = difference > SAME_WORK * first["windows"]
    table.loc[unequal, ["speed-up", "efficiency"]] = None
    notes = []
    if unequal.any():
        runs = [
            f"{row.run} ({row.windows:,.0f} windows, not {windows:,.0f})"
            for row, windows in zip(
                table[unequal].itertuples(), first["windows"][unequal], strict=True
            )
        ]
        notes.append(f"not of equal examples, so without an efficiency: {', '.join(runs)}")
    for name, rows in by_series:
        if len(rows) == 1:
            notes.append(f"{name}: one point alone has no efficiency")
    return table, notes


def _published_points(all_series: bool, beside: bool) -> Iterator[SeriesPoint]:
    """Yield the published measurements.

    Args:
        all_series: whether to yield all of them.
        beside: whether to yield at least the series of equal examples, beside measured ones.
    """
    if all_series:
        for run in FINE_TUNING:
            yield SeriesPoint(
                series="fine-tuning xxlarge, windows/s over GPUs",
                source="published",
                size=run.slots,
                throughput=run.throughput,
            )
    for row in SERIES:
        if not (all_series or (beside and row.windows)):
            continue
        for size, throughput in row.throughput.items():
            yield SeriesPoint(
                series=row.series,
                source="published",
                size=size,
                throughput=throughput,
                windows=row.windows.get(size),
            )


def _measured_points(runs: Sequence[tuple[str, Run]]) -> Iterator[SeriesPoint]:
    """Yield the measurements of runs, each with the name of its series.

    Raises:
        UserError: if a run is of another model or other data than its series, or has no throughput.
    """
    first_runs = dict[str, Run]()  # of each series
    for series, run in runs:
        throughput = run.work.throughput
        base = first_runs.setdefault(series, run)
        if run.model != base.model or run.data != base.data:
            raise UserError(
                f"not the model and data of {base.name}", key=run.name, cure="give it a LABEL="
            )
        if throughput is None:
            raise UserError(
                "no throughput in its records yet", key=run.name, cure="wait for a report"
            )
        yield SeriesPoint(
            series=series,
            source="measured",
            size=run.slots,
            throughput=throughput,
            windows=run.work.windows,
            name=run.name,
        )


def _local_runs(texts: Sequence[str], rates: Rates) -> tuple[list[tuple[str, Run]], list[str]]:
    """Return the runs of `LABEL=PATH` or `PATH`, each with the name of its series, and why others
    are left out.
    """
    named_runs = []
    notes = []
    for text in texts:
        label = ""
        path = text
        if "=" in text:
            label, path = text.split("=", 1)
        try:
            runs, left_out = read_runs([path], rates.table())
        except UserError as error:
            # Among several, a folder without a run is passed over.
            if len(texts) == 1 or not Path(path).is_dir():
                raise
            runs, left_out = [], [str(error)]
        notes += left_out
        for run in runs:
            workers = _loader_workers(run)
            name = f"{label}{workers}"
            if not label:
                name = f"{run.model or 'measured'}{workers}, {UNIT}"
            named_runs.append((name, run))
    return named_runs, notes


def _trial_runs(args: argparse.Namespace, rates: Rates) -> Iterator[tuple[str, Run]]:
    """Yield each trial of a master with the name of its series."""
    ledger = fetch_ledger(Selection.of(args), rates)
    if ledger is None:
        return

    # A trial that still runs is a series apart: its throughput is of its reports so far.
    for run in bills.trial_runs(ledger.records, ledger.table):
        _, _, machine = run.hardware.partition(" x ")
        model = run.model or "a model"
        running = ", still running" if run.work.running else ""
        workers = _loader_workers(run)
        yield f"{model} on {machine or run.hardware}{workers}{running}, {UNIT}", run


def _loader_workers(run: Run) -> str:
    """Return the part of a series' name that has the loader workers; empty if not configured."""
    hparams = run.config.get("hyperparameters") or {}
    workers = hparams.get("num_workers")
    return "" if workers is None else f", {workers} loader workers"
