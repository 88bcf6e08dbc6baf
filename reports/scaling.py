"""The command `scaling`: throughput of N GPUs or machines relative to N times that of one."""

import argparse
from collections.abc import Iterator

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


def run(args: argparse.Namespace) -> Report:
    """Report efficiency over slots, published and measured; one series per model and data.

    Raises:
        UserError: if runs do not belong to one series, or have no throughput yet.
    """
    rows = []
    firsts = dict[str, Run]()  # of each series
    for label, run in _measured(args):
        throughput = run.work.throughput
        base = firsts.setdefault(label, run)
        if run.model != base.model or run.data != base.data:
            raise UserError(f"{run.name}: not the model and data of {base.name}; give it a LABEL=")
        if throughput is None:
            raise UserError(f"{run.name}: no throughput in its records yet; wait for a report")
        rows.append((label, "measured", run.slots, throughput))
    if args.published:
        ours = {run.slots: run.throughput for run in FINE_TUNING}
        published = {"fine-tuning xxlarge, windows/s over GPUs": ours, **SERIES}
        for name, rates in published.items():
            for n, rate in rates.items():
                rows.append((name, "published", n, rate))
    if not rows:
        raise UserError("scaling: nothing to report; give --published, --run or --experiment")
    table, notes = _efficiencies(rows)
    return Report(
        title="How throughput scales",
        tables=[Table("Scaling", table)],
        method=METHOD["scaling"],
        notes=notes,
    )


def _efficiencies(rows: list[tuple[str, str, int, float]]) -> tuple[pd.DataFrame, list[str]]:
    """Return the measurements with their efficiency, and notes on series of one point.

    Raises:
        UserError: if a series has two throughputs for one size.
    """
    table = pd.DataFrame(rows, columns=["series", "source", "N", "throughput"])
    twice = table[table.duplicated(["series", "N"])]
    if len(twice):
        name, units = twice[["series", "N"]].iloc[0]
        raise UserError(f"{name}: two throughputs for {units}; name the series apart, LABEL=PATH")

    # Series in order of appearance, each by N; its first point has 100 %.
    series = table.groupby("series", sort=False)
    table = pd.concat(points.sort_values("N") for _, points in series)
    each = table["throughput"] / table["N"]
    first = each.groupby(table["series"]).transform("first")
    table["efficiency"] = each / first
    notes = []
    for name, points in series:
        if len(points) == 1:
            notes.append(f"{name}: one point alone has no efficiency")
    return table, notes


def _measured(args: argparse.Namespace) -> Iterator[tuple[str, Run]]:
    """Yield each run and experiment with the name of its series."""
    rates = Rates(args.prices)
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
    for run in bills.experiment_runs(ledger.records, ledger.table):
        _, _, machine = run.hardware.partition(" x ")
        model = run.model or "a model"
        running = ", still running" if run.work.running else ""
        yield f"{model} on {machine or run.hardware}{running}, {UNIT}", run
