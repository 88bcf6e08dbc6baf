"""The command `scaling`: throughput of N GPUs or machines relative to N times that of one."""

import argparse
from collections.abc import Iterator

import pandas as pd

from cluster.facts.published import FINE_TUNING, SERIES
from detalbert.errors import UserError
from reports import bills, records, shares
from reports.rates import Rates
from reports.report import METHOD, Report, Table
from reports.run import Run, read_runs

UNIT = "windows/s over slots"


def run(args: argparse.Namespace) -> Report:
    """Report efficiency over slots, published and measured; one series per model and data.

    Raises UserError if runs do not belong to one series, or have no throughput yet.
    """
    rows = [*_measured(args), *(_published() if args.published else [])]
    if not rows:
        raise UserError("scaling: nothing to report; give --published, --run or --experiment")
    found = pd.DataFrame(rows, columns=["series", "source", "N", "throughput"])
    if (twice := found[found.duplicated(["series", "N"])]).size:
        name, units = twice[["series", "N"]].iloc[0]
        said = f"{name}: two throughputs for {units}; name the series apart, LABEL=PATH"
        raise UserError(said)
    series = pd.Categorical(found["series"], found["series"].unique())
    found = found.assign(series=series).sort_values(["series", "N"]).astype({"series": str})
    each = found["throughput"] / found["N"]  # of which the first of a series has 100 %
    found["efficiency"] = each / each.groupby(found["series"]).transform("first")
    single = found.loc[~found["series"].duplicated(keep=False), "series"]
    notes = [f"{name}: one point alone has no efficiency" for name in single]
    return Report("How throughput scales", [Table("Scaling", found)], METHOD["scaling"], notes)


def _published() -> list[tuple[str, str, int, float]]:
    """Return a row per published measurement: throughput/s at N GPUs or machines."""
    ours = {run.slots: run.throughput for run in FINE_TUNING}
    series = {"fine-tuning xxlarge, windows/s over GPUs": ours, **SERIES}
    return [(name, "published", n, rate) for name in series for n, rate in series[name].items()]


def _measured(args: argparse.Namespace) -> Iterator[tuple[str, str, int, float]]:
    """Yield a row per run and experiment; one series per model and data."""
    rates, runs = Rates(args.prices), list[tuple[str, Run]]()
    first = dict[str, Run]()
    for text in args.run:
        label, path = text.split("=", 1) if "=" in text else (f"measured, {UNIT}", text)
        runs += [(label, run) for run in read_runs([path], rates.table(), None)[0]]
    if cluster := records.fetch_experiments(args):
        for run in bills.experiment_runs(cluster, shares.segments(cluster, rates, {})):
            machine = run.hardware.partition(" x ")[2] or run.hardware
            kind = f"{run.model or 'a model'} on {machine}" + ", still running" * run.running
            runs.append((f"{kind}, {UNIT}", run))
    for label, run in runs:
        base = first.setdefault(label, run)
        if (run.model, run.data) != (base.model, base.data):
            raise UserError(f"{run.name}: not the model and data of {base.name}; give it a LABEL=")
        if run.throughput is None:
            raise UserError(f"{run.name}: no throughput in its records yet; wait for a report")
        yield label, "measured", run.slots, run.throughput
