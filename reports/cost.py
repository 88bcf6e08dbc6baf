"""The command `cost`: time and cost of runs, compared with one of them as the baseline."""

import argparse
import re
from typing import Any

import pandas as pd

from cluster.facts import prices as price_file
from cluster.facts.prices import Price
from cluster.facts.published import FINE_TUNING
from detalbert.errors import UserError
from reports import bills, records, shares
from reports.rates import PricedType, Rates
from reports.report import METHOD, TABLES, Report, Table
from reports.run import Run, machine_of, published_runs, read_runs
from reports.usage import Records

DOLLARS = "${:,.2f}"


def run(args: argparse.Namespace) -> Report:
    """Report the cost of published, local and cluster runs."""
    rates = Rates(path=args.prices, region=args.region or "", live=bool(args.live))
    found = records.fetch_experiments(args)
    if args.by and found is None:
        raise UserError("--by: totals are of a cluster's experiments; give --experiment or --since")
    found = _with_pools(found, args.price_pool, rates)
    used = _kinds(args, found, rates)
    notes = rates.ask_aws(args, used)
    runs, sums = published_runs(rates.table()) if args.published else [], None
    local, left_out = read_runs(args.run, rates.table(), args.windows)
    runs, notes = runs + local, notes + left_out
    if found:
        table, more = _table(args, found, rates)
        billed = bills.experiment_runs(found, table)
        notes += [*more, *found.notes, *bills.notes(found, table)]
        runs += billed
        sums = bills.totals(found, table, args.by) if args.by else None
    prices = [price for kind in used if (price := rates.at(kind))]
    return _report(args, runs, prices, notes, sums)


def _kinds(args: argparse.Namespace, found: Records | None, rates: Rates) -> list[PricedType]:
    """Return the machines whose prices the report uses."""
    kinds = {rates.kind(row.instance) for row in FINE_TUNING} if args.published else set()
    for text in args.run:
        if "@" in text:
            kinds.add(rates.kind(text.rpartition("@")[2].partition(":")[0]))
    for machine in shares.machines(found) if found else ():
        kinds.add(rates.kind(machine.pool.instance, machine.pool.region))
    return sorted(kind for kind in kinds if kind.instance)


def _table(
    args: argparse.Namespace, found: Records, rates: Rates
) -> tuple[pd.DataFrame, list[str]]:
    """Return the shares of all machines' hours and dollars, and notes on past spot prices."""
    spot = {
        rates.kind(machine.pool.instance, machine.pool.region)
        for machine in shares.machines(found)
        if machine.pool.spot
    }
    since = found.since or min((a.start for a in found.allocations), default=found.until)
    past, notes = rates.history(args, spot, since - records.LOOK_BACK, found.until)
    return shares.segments(found, rates, past), notes


def _with_pools(found: Records | None, asked: list[str], rates: Rates) -> Records | None:
    """Return the records with pools priced as --price-pool says; UserError for others' names."""
    pools = dict(found.pools) if found else {}
    for text in asked:
        name, _, machine = text.partition("=")
        price, spot = machine_of(f"--price-pool {name}=", machine, rates.table())
        if name not in pools:
            seen = f"has {', '.join(pools)}" if found else "is not asked; give --experiment"
            raise UserError(f"--price-pool {name}: no such pool; the master {seen}")
        pools[name] = pools[name]._replace(instance=price.instance, spot=spot)
    return found and found._replace(pools=pools)


def _report(
    args: argparse.Namespace, runs: list[Run], used: list[Price], notes: list[str], sums: Any
) -> Report:
    """Return the report; `sums` are the cluster's totals. UserError without runs or baseline."""
    if not runs:
        raise UserError("cost: nothing to report; give RUN, --published or --experiment")
    base = next((run for run in runs if args.baseline in (None, run.name)), None)
    if base is None:
        known = ", ".join(dict.fromkeys(run.name for run in runs))
        raise UserError(f"--baseline {args.baseline}: not the name of a run; one of: {known}")
    rows = pd.DataFrame([_row(run, base, args.tokens) for run in runs], dtype=object)
    narrow = TABLES["narrow"]
    if args.tokens:
        rows = rows.rename(columns=_in_tokens)
        narrow = {_in_tokens(head): _in_tokens(cell) for head, cell in narrow.items()}
    tables = [] if sums is None else [Table(f"Totals by {sums.columns[0]}", sums)]
    tables.append(Table(f"Runs, beside {base.name}", rows, narrow=narrow))
    paid = [{"run": run.name, "sum": run.cost, **run.parts} for run in runs if len(run.parts) > 1]
    if paid:
        frame = pd.DataFrame(paid, dtype=object)
        tables.append(
            Table("What it was paid for", frame, dict.fromkeys(frame.columns[1:], DOLLARS))
        )
    tables += [_price_table(used)] if used else []
    own = [f"{run.name}: {note}" for run in runs for note in run.notes]
    own += [f"{run.name}: not compared: {why}" for run in runs if (why := run.unlike(base))]
    own += [*notes, *price_file.price_notes(used, args.today)]
    bars = [(_label(run), run.parts) for run in runs if run.cost]
    own_runs = [run for run in runs if not run.name.startswith("published, ")]
    costs = [run.cost for run in own_runs or runs]
    partly = any(run.unpriced for run in own_runs)
    total = None if None in costs or partly else sum(filter(None, costs))
    title = f"What the runs cost: {price_file.prices_head(used, args.today)}"
    return Report(title, tables, METHOD["cost"], own, bars, total)


def _in_tokens(head: str) -> str:
    return re.sub(r"1,000(\s)windows", r"1M\1tokens", head.replace("windows/s", "tokens/s"))


def _label(run: Run) -> str:
    """Return what stands over a run's bar."""
    low, high = run.low or run.cost, run.high or run.cost
    seen = f" (${low:,.2f} to ${high:,.2f})" if low != high else ""
    return f"{run.name}: ${run.cost:,.2f}{seen}, {run.worked or run.hours:.2f} h"


def _row(run: Run, base: Run, tokens: bool) -> dict[str, object]:
    """Return the columns of `run`, and those that compare it with `base`."""
    row = {head: getattr(run, name) for head, name in TABLES["cost"].items()}
    worked, its, alike = run.worked or run.hours, base.worked or base.hours, not run.unlike(base)
    work = run.windows / 1e3
    if tokens:
        row["windows/s"] = (run.throughput or 0) * (run.tokens or 0) or None
        work = run.windows * (run.tokens or 0) / 1e6
    if run.low == run.high:
        row["low"] = row["high"] = None
    whole = alike and not run.unpriced and not base.unpriced
    saved = 1 - run.cost / base.cost if whole and base.cost and run.cost is not None else None
    return row | {
        "run": run.name + (" (running)" if run.running else "") + ("" if alike else " *"),
        "worked h": worked,
        "stops": None if run.stops is None else sum(run.stops.values()),
        "kinds": ", ".join(f"{n} {kind}" for kind, n in sorted((run.stops or {}).items())) or None,
        "$/1,000 windows": None if run.cost is None or not work else run.cost / work,
        "faster": its / worked if worked and alike else None,
        "cheaper": saved,
    }


def _price_table(prices: list[Price]) -> Table:
    """Return all prices that the report used, with day and source."""
    facts = [{"instance": each.instance, **vars(each)} for each in prices]
    rows = pd.DataFrame(facts, dtype=object).rename(columns=lambda n: n.replace("_", " "))
    formats = dict.fromkeys(("on demand", "spot", "spot low", "spot high"), "${:,.4f}")
    return Table("Prices", rows, {"slots": "{}", "teraflops": "{:,.0f}", **formats}, long=True)
