"""The command `cost`: time and cost of runs, compared with one of them as the baseline."""

import argparse
from pathlib import Path
from typing import Any

import yaml

from cluster import live_prices, records
from cluster import prices as price_file
from cluster.prices import Price, find_price, load_prices
from cluster.published import FINE_TUNING
from detalbert.errors import UserError
from reports import bills, shares
from reports.plots import cost_plot
from reports.report import COLUMNS, Report, Table, frame, price_table
from reports.runs import Run, machine_of, published_runs, read_run

METHOD = yaml.safe_load(Path(__file__).with_name("method.yaml").read_text(encoding="utf-8"))


def run(args: argparse.Namespace) -> Report:
    """Report the cost of published, local and cluster runs."""
    known, pools = load_prices(args.prices), dict[str, records.RecordedPool]()
    for text in args.price_pool:
        name, _, machine = text.partition("=")
        price, on_spot = machine_of(f"--price-pool {name}=", machine, known)
        pools[name] = records.RecordedPool(price.instance, on_spot)
    found = records.fetch_experiments(args)
    if args.by and found is None:
        raise UserError("--by: totals are of a cluster's experiments; give --experiment or --since")
    wanted = {row.instance for row in FINE_TUNING} if args.published else set()
    wanted |= {text.rpartition("@")[2].partition(":")[0] for text in args.run if "@" in text}
    if pools and not (found and pools.keys() <= found.pools.keys()):
        name = next(name for name in pools if not found or name not in found.pools)
        seen = f"has {', '.join(found.pools)}" if found else "is not asked; give --experiment"
        raise UserError(f"--price-pool {name}: no such pool; the master {seen}")
    if found:
        found = found._replace(pools={**found.pools, **pools})
        wanted |= {machine.pool.instance for machine in shares.machines(found)}
    used = [find_price(known, instance).instance for instance in sorted(wanted) if instance]
    known, notes = live_prices.priced(args, known, used)
    runs, sums = published_runs(known) if args.published else [], None
    runs += [read_run(text, known, args.windows) for text in args.run]
    if found:
        spot = sorted({pool.instance for pool in found.pools.values() if pool.spot} & {*used})
        since = found.since or min((a.start for a in found.allocations), default=found.until)
        past, more = live_prices.history(args, known, spot, since - records.LOOK_BACK, found.until)
        table = shares.segments(found, known, past)
        runs += bills.experiment_runs(found, table)
        notes += [*more, *found.notes, *bills.notes(found, table)]
        sums = bills.totals(found, table, args.by) if args.by else None
    return _report(args, runs, [known[instance] for instance in used], notes, sums)


def _report(
    args: argparse.Namespace, runs: list[Run], used: list[Price], notes: list[str], sums: Any
) -> Report:
    """Return the report; `sums` are the cluster's totals. UserError without runs or baseline."""
    if not runs:
        raise UserError("cost: nothing to report; give --published, --run or --experiment")
    named = {run.name: run for run in reversed(runs)}
    base = runs[0] if args.baseline is None else named.get(args.baseline)
    if base is None:
        known = ", ".join(named)
        raise UserError(f"--baseline {args.baseline}: not the name of a run; one of: {known}")
    unit = "$/1M tokens" if args.tokens else "$/1,000 windows"
    rows = frame([_row(run, base, unit) for run in runs])
    formats, narrow = COLUMNS["cost"]["formats"], COLUMNS["cost"]["narrow"]
    tables = [] if sums is None else [Table(f"Totals by {sums.columns[0]}", sums, formats)]
    tables.append(Table(f"Runs, beside {base.name}", rows, formats, narrow=narrow))
    if parts := [run for run in runs if len(run.parts) > 1]:
        paid = frame([{"run": run.name, "sum": run.cost, **run.parts} for run in parts])
        money = dict.fromkeys(paid.columns[1:], "${:,.2f}")
        tables.append(Table("What it was paid for", paid, money))
    tables += [price_table(used)] if used else []
    own = [f"{run.name}: {note}" for run in runs for note in run.notes]
    own += [f"{run.name}: not compared: {why}" for run in runs if (why := run.unlike(base))]
    own += [*notes, *price_file.price_notes(used, args.today)]
    plots = [cost_plot(runs)] if any(run.cost is not None for run in runs) else []
    own_runs = [run for run in runs if not run.name.startswith("published, ")]
    costs = [run.cost for run in own_runs or runs]
    total = None if None in costs else sum(filter(None, costs))
    return Report("What the runs cost", tables, METHOD["cost"], own, plots, total=total)


def _row(run: Run, base: Run, unit: str) -> dict[str, object]:
    """Return the columns of `Run`, and those that compare it with `base`."""
    row = {head: getattr(run, name) for head, name in COLUMNS["cost"]["columns"].items()}
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
