"""`cost`: time and cost of runs, compared with one of them as the baseline."""

import datetime
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

import pandas as pd
import yaml

from cluster import prices as price_file
from cluster.prices import Price
from detalbert.errors import UserError
from reports.plots import cost_plot
from reports.report import Report, Table, frame, price_table
from reports.run import Run

SHOWN = {each.name: each.metadata for each in fields(Run) if each.metadata}
FORMATS = {column["head"]: column["style"] for column in SHOWN.values() if column["style"]}
FORMATS |= {"experiments": "{}", "hours": "{:,.2f}", "tokens/s": "{:,.2f}", "cheaper": "{:.0%}"}
FORMATS |= {"$/1,000 windows": "${:,.4f}", "$/1M tokens": "${:,.4f}", "faster": "{:.4g}x"}
METHOD = yaml.safe_load(Path(__file__).with_name("method.yaml").read_text(encoding="utf-8"))


def cost_report(
    runs: Sequence[Run], baseline: str | None, used: Sequence[Price], notes: Sequence[str],
    today: datetime.date, tokens: bool = False, sums: pd.DataFrame | None = None,
) -> Report:  # fmt: skip
    """Return the cost report; `sums` are totals of the cluster's runs. Raises UserError if there
    are no runs, or `baseline` is not the name of one.
    """
    if not runs:
        raise UserError("cost: nothing to report; give --published, --run or --experiment")
    named = {run.name: run for run in reversed(runs)}
    base = runs[0] if baseline is None else named.get(baseline)
    if base is None:
        raise UserError(f"--baseline {baseline}: not the name of a run; one of: {', '.join(named)}")
    unit = "$/1M tokens" if tokens else "$/1,000 windows"
    rows = frame([_row(run, base, unit) for run in runs])
    tables = [] if sums is None else [Table(f"Totals by {sums.columns[0]}", sums, FORMATS)]
    tables.append(Table(f"Runs, beside {base.name}", rows, FORMATS, narrow=_narrow(unit)))
    if parts := [run for run in runs if len(run.parts) > 1]:
        paid = frame([{"run": run.name, "sum": run.cost, **run.parts} for run in parts])
        money = dict.fromkeys(paid.columns[1:], "${:,.2f}")
        tables.append(Table("What it was paid for", paid, money))
    tables += [price_table(used)] if used else []
    own = [f"{run.name}: {note}" for run in runs for note in run.notes]
    own += [f"{run.name}: not compared: {why}" for run in runs if (why := run.unlike(base))]
    own += [*notes, *price_file.notes(list(used), today)]
    plots = [cost_plot(runs)] if any(run.cost is not None for run in runs) else []
    own_runs = [run for run in runs if not run.name.startswith("published, ")]
    costs = [run.cost for run in own_runs or runs]
    total = None if None in costs else sum(filter(None, costs))
    return Report("What the runs cost", tables, METHOD["cost"], own, plots, total=total)


def _row(run: Run, base: Run, unit: str) -> dict[str, object]:
    """Return the columns of `Run`, and those that compare it with `base`."""
    row = {column["head"]: getattr(run, name) for name, column in SHOWN.items()}
    worked, its, tokens = run.worked or run.hours, base.worked or base.hours, "tokens" in unit
    alike = not run.unlike(base)
    cheaper = 1 - run.cost / base.cost if alike and base.cost and run.cost is not None else None
    work = run.windows * (run.tokens or 0) / 1e6 if tokens else run.windows / 1e3
    if tokens:
        row = {"tokens/s" if head == "windows/s" else head: row[head] for head in row}
        row["tokens/s"] = (run.throughput or 0) * (run.tokens or 0) or None
    if run.low == run.high:
        row["low"] = row["high"] = None
    return row | {
        "run": run.name + (" (running)" if run.running else "") + ("" if alike else " *"),
        "worked h": worked,
        "stops": None if run.stops is None else sum(run.stops.values()),
        "kinds": ", ".join(f"{n} {kind}" for kind, n in sorted((run.stops or {}).items())) or None,
        unit: None if run.cost is None or not work else run.cost / work,
        "faster": its / worked if worked and alike else None,
        "cheaper": cheaper,
    }


def _narrow(unit: str) -> dict[str, str]:
    """Return the columns for a width of 80 characters; units are in the heads."""
    return {
        "run": "{run}\n{kinds}",
        "cost $\nlow-high": "{cost}\n{low}-{high}",
        "on de-\nmand $": "{on demand}",
        "inter-\nrupted $": "{interruptions}",
        unit.replace(" ", "\n") + "\ncheaper": f"{{{unit}}}\n{{cheaper}}",
        "EM\nF1": "{EM}\n{F1}",
        "worked\nhours\nfaster": "{worked h}\n{faster}",
    }
