"""The command `scaling`: throughput of N GPUs or machines relative to N times that of one.

A series is of one model and one data set on one kind of machine; runs that differ in these are
refused rather than joined, as their ratio would be no efficiency.
"""

import argparse
from collections.abc import Iterator
from typing import NamedTuple

import pandas as pd

from cluster.facts.published import FINE_TUNING, SERIES
from cluster.facts.rates import Rates
from detalbert.errors import UserError
from reports import bills
from reports.ledger import fetch_ledger
from reports.report import METHOD, Report, Table
from reports.run import Run, read_runs
from reports.usage import Selection

UNIT = "windows/s over slots"


class SeriesPoint(NamedTuple):
    """A measurement of a series."""

    series: str
    source: str  # measured or published
    size: int  # GPUs or machines
    throughput: float  # of all of them


def run(args: argparse.Namespace) -> Report:
    """Report efficiency over slots, published and measured; one series per model and data.

    Raises:
        UserError: if runs do not belong to one series, or have no throughput yet.
    """
    points = []
    firsts = dict[str, Run]()  # of each series
    for series, run in _measured(args):
        throughput = run.work.throughput
        base = firsts.setdefault(series, run)
        if run.model != base.model or run.data != base.data:
            raise UserError(
                f"not the model and data of {base.name}", key=run.name, cure="give it a LABEL="
            )
        if throughput is None:
            raise UserError(
                "no throughput in its records yet", key=run.name, cure="wait for a report"
            )
        points.append(SeriesPoint(series, "measured", size=run.slots, throughput=throughput))
    if args.published:
        fine_tuning = {run.slots: run.throughput for run in FINE_TUNING}
        published = {"fine-tuning xxlarge, windows/s over GPUs": fine_tuning, **SERIES}
        for series, throughputs in published.items():
            for size, throughput in throughputs.items():
                points.append(SeriesPoint(series, "published", size=size, throughput=throughput))
    if not points:
        raise UserError(
            "nothing to report", key="scaling", cure="give --published, --run or --experiment"
        )
    table, notes = _efficiencies(points)
    return Report(
        title="How throughput scales",
        tables=[Table("Scaling", frame=table)],
        method=METHOD["scaling"],
        notes=notes,
    )


def _efficiencies(points: list[SeriesPoint]) -> tuple[pd.DataFrame, list[str]]:
    """Return the measurements with their efficiency, and notes on series of one point.

    Raises:
        UserError: if a series has two throughputs for one size.
    """
    table = pd.DataFrame(points, columns=["series", "source", "N", "throughput"])
    repeated = table[table.duplicated(["series", "N"])]
    if len(repeated):
        name, size = repeated[["series", "N"]].iloc[0]
        raise UserError(
            f"two throughputs for {size}", key=name, cure="name the series apart, LABEL=PATH"
        )

    # Series in order of appearance, each by N; its first point has 100 %.
    by_series = table.groupby("series", sort=False)
    table = pd.concat(rows.sort_values("N") for _, rows in by_series)
    per_unit = table["throughput"] / table["N"]
    first = per_unit.groupby(table["series"]).transform("first")
    table["efficiency"] = per_unit / first
    notes = []
    for name, rows in by_series:
        if len(rows) == 1:
            notes.append(f"{name}: one point alone has no efficiency")
    return table, notes


def _measured(args: argparse.Namespace) -> Iterator[tuple[str, Run]]:
    """Yield each run and experiment with the name of its series."""
    # Prices are read for RUN@INSTANCE alone: this report has no dollars.
    rates = Rates(path=args.prices)
    for text in args.run:
        label = f"measured, {UNIT}"
        path = text
        if "=" in text:
            label, path = text.split("=", 1)
        runs, _ = read_runs([path], rates.table())
        for run in runs:
            yield label, run
    ledger = fetch_ledger(Selection.of(args), rates)
    if ledger is None:
        return

    # An experiment that still runs is a series apart: its throughput is of its reports so far.
    for run in bills.experiment_runs(ledger.records, ledger.table):
        _, _, machine = run.hardware.partition(" x ")
        model = run.model or "a model"
        running = ", still running" if run.work.running else ""
        yield f"{model} on {machine or run.hardware}{running}, {UNIT}", run
