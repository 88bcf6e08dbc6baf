"""The command `scaling`: throughput of N GPUs or machines relative to N times that of one."""

import argparse
from collections.abc import Iterator

import pandas as pd

from cluster.facts.published import FINE_TUNING, SERIES
from detalbert.errors import UserError
from reports import bills
from reports.ledger import fetch_ledger
from reports.rates import Rates
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
    series = dict[str, Run]()  # the first run of each
    for label, run in _measured(args):
        base = series.setdefault(label, run)
        if (run.model, run.data) != (base.model, base.data):
            raise UserError(f"{run.name}: not the model and data of {base.name}; give it a LABEL=")
        if run.work.throughput is None:
            raise UserError(f"{run.name}: no throughput in its records yet; wait for a report")
        rows.append((label, "measured", run.slots, run.work.throughput))
    if args.published:
        ours = {run.slots: run.throughput for run in FINE_TUNING}
        for name, rates in {"fine-tuning xxlarge, windows/s over GPUs": ours, **SERIES}.items():
            rows += [(name, "published", n, rate) for n, rate in rates.items()]
    if not rows:
        raise UserError("scaling: nothing to report; give --published, --run or --experiment")
    table = pd.DataFrame(rows, columns=["series", "source", "N", "throughput"])
    twice = table[table.duplicated(["series", "N"])]
    if len(twice):
        name, units = twice[["series", "N"]].iloc[0]
        raise UserError(f"{name}: two throughputs for {units}; name the series apart, LABEL=PATH")

    # Series in order of appearance, each by N; its first point has 100 %.
    table = pd.concat(rows.sort_values("N") for _, rows in table.groupby("series", sort=False))
    each = table["throughput"] / table["N"]
    table["efficiency"] = each / each.groupby(table["series"]).transform("first")
    single = table.loc[~table["series"].duplicated(keep=False), "series"]
    notes = [f"{name}: one point alone has no efficiency" for name in single]
    return Report("How throughput scales", [Table("Scaling", table)], METHOD["scaling"], notes)


def _measured(args: argparse.Namespace) -> Iterator[tuple[str, Run]]:
    """Yield each run and experiment with the name of its series."""
    rates = Rates(args.prices)
    for text in args.run:
        label, path = text.split("=", 1) if "=" in text else (f"measured, {UNIT}", text)
        for run in read_runs([path], rates.table())[0]:
            yield label, run
    ledger = fetch_ledger(Selection.of(args), rates)
    for run in bills.experiment_runs(ledger.records, ledger.table) if ledger else ():
        machine = run.hardware.partition(" x ")[2] or run.hardware
        running = ", still running" if run.work.running else ""
        yield f"{run.model or 'a model'} on {machine}{running}, {UNIT}", run
