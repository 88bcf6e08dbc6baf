"""The command `cost`: published runs, runs of folders, and what ran on a cluster, as one table.

Rows of a cluster are of experiments, or of any cut into users, labels, months and pools; they add
up. pandas, whose import takes a second of CPU, is left to them.
"""

import argparse
import math
import sys
from collections.abc import Iterator

from cluster.published import EPOCHS, FINE_TUNING, WINDOWS
from detalbert.errors import UserError
from reports.forms import Row, write

# Columns by which the rows of a cut are grouped, if it is none itself.
CUTS = {"experiment": ["experiment", "name", "user"]}
# All columns, in order. One more of a cluster is also one of `bill.SUMS`.
COLUMNS = [
    "experiment",
    "name",
    "user",
    "label",
    "month",
    "pool",
    "machine",
    "starts",
    "failed",
    "agent lost",
    "killed",
    "preempted",
    "unknown",
    "hours",
    "start-up",
    "work",
    "lost",
    "idle",
    "unpriced",
    "dollars",
    "on demand",
    "windows",
    "$/1,000 windows",
    "windows/s",
    "exact",
    "f1",
    "faster",
    "cheaper",
]
# Columns of runs, by their dotted keys.
RUN_COLUMNS = {
    "best.exact": "exact",
    "best.f1": "f1",
    "throughput.examples_per_second": "windows/s",
}


def run(args: argparse.Namespace) -> int:
    """Report what runs cost; return the exit status."""
    published = list(_published_rows()) if args.published else []
    rows, notes = _own_rows(args)
    # A budget is for one's own runs, unless the report is of published ones alone.
    counted = rows or published
    if not counted:
        raise UserError(
            "nothing to report",
            key="cost",
            cure="give RUN, --published, --experiment or --since",
        )
    dollars = sum(row["dollars"] or 0.0 for row in counted)
    is_part = any(row["dollars"] is None or row.get("unpriced") for row in counted)
    part = ", and not all of it has a price" if is_part else ""
    table = [{column: row.get(column) for column in COLUMNS} for row in published + rows]
    write(args, f"What it cost: ${dollars:,.2f}{part}", table, notes)

    # Dollars of a part may be over a budget, but not within it.
    if args.budget == math.inf or (dollars <= args.budget and not part):
        return 0
    print(f"reports: ${dollars:,.2f} of ${args.budget:,.2f}{part}", file=sys.stderr)
    return 3


def _published_rows() -> Iterator[Row]:
    """Yield the published runs of fine-tuning, at the prices of their time."""
    first = FINE_TUNING[0]
    for published in FINE_TUNING:
        yield {
            "name": f"published, {published.slots} x V100",
            "machine": published.instance + (":spot" if published.spot else ""),
            "hours": published.hours,
            "dollars": published.cost,
            "on demand": published.machines * published.hours * published.on_demand,
            "$/1,000 windows": published.cost / (EPOCHS * WINDOWS) * 1000,
            "windows/s": published.throughput,
            "exact": published.exact,
            "f1": published.f1,
            "faster": first.hours / published.hours,
            "cheaper": 1 - published.cost / first.cost,
        }


def _own_rows(args: argparse.Namespace) -> tuple[list[Row], list[str]]:
    """Return the runs of folders, then what ran on a cluster by the columns of --by, and notes."""
    if not (args.run or args.experiment or args.workspace or args.project or args.since):
        return [], []
    import pandas as pd

    from reports.bill import SUMS, fetch_bill
    from reports.runs import as_rows, read_folders, trial_runs

    folders, notes = read_folders(args.run, args.region)
    table = pd.json_normalize(folders).rename(columns=RUN_COLUMNS)
    fetched = fetch_bill(args)
    if fetched is not None:
        records, frame, bill_notes = fetched
        notes += bill_notes
        keys = list(dict.fromkeys(key for cut in args.by for key in CUTS.get(cut, [cut])))
        rows = frame.groupby(keys)[SUMS].sum(min_count=1).reset_index()
        # A span has a part of an experiment's dollars, and no part of its scores.
        if args.by == ["experiment"] and args.since is None and args.until is None:
            trials = pd.json_normalize(trial_runs(records, frame)).rename(columns=RUN_COLUMNS)
            trials = trials.reindex(columns=["experiment", "windows", "exact", "f1"])
            best = trials.groupby("experiment").agg({"windows": "sum", "exact": "max", "f1": "max"})
            rows = rows.join(best, on="experiment")
        table = pd.concat([table, rows])
    table = table.reindex(columns=COLUMNS)
    windows = table["windows"].where(table["windows"] > 0)
    table["$/1,000 windows"] = table["dollars"] / windows * 1000
    return as_rows(table), notes
