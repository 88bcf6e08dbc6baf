"""`cost`: what runs took and what they cost, beside one of them as the baseline."""

import datetime
from collections.abc import Sequence

from detalbert.errors import UserError
from reports import prices as price_file
from reports.plots import cost_plot
from reports.prices import Price
from reports.run import Run
from reports.tables import Report, Table, frame, price_table

_MONEY = "${:,.2f}"
FORMATS = {
    **dict.fromkeys(("slots", "restarts"), "{}"),
    **dict.fromkeys(("windows/s", "hours", "lost h", "EM", "F1"), "{:.2f}"),
    **dict.fromkeys(("$/hour", "cost"), _MONEY),
    "$/1,000 windows": "${:.4f}",
    "faster": "{:.0f}x",
    "cheaper": "{:.0%}",
}
METHOD = [
    "Cost is price x machine-hours, for every row; no cost is typed in.",
    "Published rows: GPUs, machines, throughput, hours, EM and F1 are as published, the rates and "
    "costs are derived. Time and throughput are training alone; boot, queue and validation were "
    "not published.",
    "Cluster rows: hours run from the first allocation to the end of the last; machines "
    "are paid from launch to termination as the master recorded it, boot and idle included. Lost "
    "is the time from an allocation's last checkpoint to its end, where work was going on that "
    "was not kept. Restarts are all starts after the first, counted against max_restarts or not.",
    "Local rows: the training seconds, windows and scores of metrics.json; validation is left out. "
    "Benchmark rows: a throughput, projected to --windows.",
    "Faster is the baseline's hours over the row's; cheaper is what of the baseline's cost is "
    "saved (negative: dearer). Both are only fair between runs of the same work.",
]


def cost_report(
    runs: Sequence[Run],
    baseline: str | None,
    used: Sequence[Price],
    notes: Sequence[str],
    today: datetime.date,
) -> Report:
    """Raises UserError for a baseline that is not the name of a run."""
    if not runs:
        raise UserError("cost: nothing to report; give --published, --run or --experiment")
    base = _baseline(runs, baseline)
    rows = [_row(run, base) for run in runs]
    tables = [Table(f"Runs, beside {base.name}", frame(rows), FORMATS)]
    parts = [run for run in runs if len(run.parts) > 1]
    if parts:
        tables.append(_parts_table(parts))
    tables.append(price_table(used))
    own = [f"{run.name}: {note}" for run in runs for note in run.notes]
    own += [*notes, *price_file.notes(list(used), today)]
    plots = [cost_plot(runs)] if any(run.cost is not None for run in runs) else []
    return Report("What the runs cost", tables, METHOD, own, plots)


def _baseline(runs: Sequence[Run], name: str | None) -> Run:
    if name is None:
        return runs[0]
    for run in runs:
        if run.name == name:
            return run
    names = ", ".join(run.name for run in runs)
    raise UserError(f"--baseline {name}: not the name of a run; one of: {names}")


def _row(run: Run, base: Run) -> dict[str, object]:
    priced = run.cost is not None and base.cost
    return {
        "run": run.name + (" (running)" if run.running else ""),
        "hardware": run.hardware,
        "slots": run.slots,
        "pool": run.pool,
        "windows/s": run.throughput,
        "hours": run.hours,
        "lost h": run.lost_hours,
        "restarts": run.restarts,
        "$/hour": run.rate,
        "cost": run.cost,
        "$/1,000 windows": run.cost_per_thousand,
        "EM": run.exact,
        "F1": run.f1,
        "faster": base.hours / run.hours if run.hours else None,
        "cheaper": 1 - run.cost / base.cost if priced else None,
    }


def _parts_table(runs: Sequence[Run]) -> Table:
    """What the money of each run was paid for."""
    names = list(dict.fromkeys(part for run in runs for part in run.parts))
    rows = [
        {"run": run.name, **{part: run.parts.get(part) for part in names}, "sum": run.cost}
        for run in runs
    ]
    return Table("What it was paid for", frame(rows), dict.fromkeys([*names, "sum"], _MONEY))
