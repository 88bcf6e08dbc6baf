"""`cost`: what runs took and what they cost, beside one of them as the baseline."""

import datetime
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import yaml

from detalbert.errors import UserError
from reports import prices as price_file
from reports.plots import cost_plot
from reports.prices import Price
from reports.run import Run
from reports.tables import Report, Table, frame, price_table

_DOLLARS = ("cost", "low", "high", "on demand", "interruptions", "$/hour")
FORMATS = {
    **dict.fromkeys(("slots", "stops", "experiments"), "{}"),
    **dict.fromkeys(("elapsed h", "worked h", "lost h", "hours", "EM", "F1"), "{:,.2f}"),
    **dict.fromkeys(("windows/s", "tokens/s"), "{:,.2f}"),
    **dict.fromkeys(_DOLLARS, "${:,.2f}"),
    **dict.fromkeys(("$/1,000 windows", "$/1M tokens"), "${:,.4f}"),
    "faster": "{:.4g}x",
    "cheaper": "{:.0%}",
}
METHOD = yaml.safe_load(Path(__file__).with_name("method.yaml").read_text(encoding="utf-8"))


def cost_report(
    runs: Sequence[Run],
    baseline: str | None,
    used: Sequence[Price],
    notes: Sequence[str],
    today: datetime.date,
    tokens: bool = False,
    sums: pd.DataFrame | None = None,
) -> Report:
    """`sums`: totals of the cluster's runs. Raises UserError for a baseline that is no run."""
    if not runs:
        raise UserError("cost: nothing to report; give --published, --run or --experiment")
    named = {run.name: run for run in reversed(runs)}
    if baseline is not None and baseline not in named:
        raise UserError(f"--baseline {baseline}: not the name of a run; one of: {', '.join(named)}")
    base = runs[0] if baseline is None else named[baseline]
    rows = [_row(run, base, tokens) for run in runs]
    tables = [] if sums is None else [Table(f"Totals by {sums.columns[0]}", sums, FORMATS)]
    tables.append(Table(f"Runs, beside {base.name}", frame(rows), FORMATS, narrow=_narrow(tokens)))
    parts = [run for run in runs if len(run.parts) > 1]
    if parts:
        paid = frame([{"run": run.name, **run.parts, "sum": run.cost} for run in parts])
        paid.insert(len(paid.columns) - 1, "sum", paid.pop("sum"))
        money = dict.fromkeys(paid.columns[1:], "${:,.2f}")
        tables.append(Table("What it was paid for", paid, money))
    tables.append(price_table(used))
    own = [f"{run.name}: {note}" for run in runs for note in run.notes]
    own += [f"{run.name}: not compared: {why}" for run in runs if (why := run.unlike(base))]
    own += [*notes, *price_file.notes(list(used), today)]
    plots = [cost_plot(runs)] if any(run.cost is not None for run in runs) else []
    counted = [run.cost for run in runs if not run.name.startswith("published, ")]
    counted = counted or [run.cost for run in runs]
    total = None if None in counted else sum(cost for cost in counted if cost is not None)
    return Report("What the runs cost", tables, METHOD["cost"], own, plots, total=total)


def _row(run: Run, base: Run, tokens: bool) -> dict[str, object]:
    worked, its = run.worked or run.hours, base.worked or base.hours
    alike = not run.unlike(base)
    priced = alike and base.cost and run.cost is not None
    speed = run.throughput if not tokens else (run.throughput or 0) * (run.tokens or 0) or None
    unit = ("tokens/s", "$/1M tokens", 1e6) if tokens else ("windows/s", "$/1,000 windows", 1e3)
    return {
        "run": run.name + (" (running)" if run.running else "") + ("" if alike else " *"),
        "hardware": run.hardware,
        "slots": run.slots,
        "pool": run.pool,
        unit[0]: speed,
        "elapsed h": run.hours,
        "worked h": worked,
        "lost h": run.lost_hours,
        "stops": sum(run.stops.values()) if run.lost_hours is not None or run.stops else None,
        "kinds": ", ".join(f"{n} {kind}" for kind, n in sorted(run.stops.items())) or None,
        "$/hour": run.rate,
        "cost": run.cost,
        "low": run.low if run.low != run.high else None,
        "high": run.high if run.low != run.high else None,
        "on demand": run.on_demand,
        "interruptions": run.stopped,
        unit[1]: run.per(unit[2], tokens),
        "EM": run.exact,
        "F1": run.f1,
        "faster": its / worked if worked and alike else None,
        "cheaper": 1 - run.cost / base.cost if priced else None,
    }


def _narrow(tokens: bool) -> dict[str, str]:
    """Within 80 columns; the units are in the head."""
    key = "$/1M tokens" if tokens else "$/1,000 windows"
    return {
        "run": "{run}\n{kinds}",
        "cost $\nlow-high": "{cost}\n{low}-{high}",
        "on de-\nmand $": "{on demand}",
        "inter-\nrupted $": "{interruptions}",
        key.replace(" ", "\n") + "\ncheaper": f"{{{key}}}\n{{cheaper}}",
        "EM\nF1": "{EM}\n{F1}",
        "worked\nhours\nfaster": "{worked h}\n{faster}",
    }
