"""The command `cost`: time and cost of runs, compared with one of them as the baseline.

Runs of all sources are rows of one table, with the columns that each source knows. Two runs that
did not do the same work are not compared, and a note says why: a ratio would be read without it.
"""

import argparse
import re
from collections.abc import Iterator
from operator import attrgetter

import pandas as pd

from cluster.facts.prices import Price, price_notes, prices_head
from cluster.facts.published import FINE_TUNING
from cluster.facts.rates import Rates
from detalbert.errors import UserError
from reports import bills
from reports.ledger import fetch_ledger
from reports.report import METHOD, TABLES, Report, Table
from reports.run import Run, published_runs, read_runs
from reports.usage import Selection

DOLLARS = "${:,.2f}"


def run(args: argparse.Namespace) -> Report:
    """Report the cost of published, local and cluster runs."""
    rates = Rates(path=args.prices, region=args.region, live=args.live, today=args.today)
    notes = rates.use_named(args.run)
    runs = []
    tables = []

    # Published runs first, then local ones, then those of a cluster.
    if args.published:
        notes += rates.use(rates.kind(row.instance) for row in FINE_TUNING)
        runs += published_runs(rates.table())
    ledger = fetch_ledger(Selection.of(args), rates, args.price_pool)
    local, left_out = read_runs(args.run, rates.table(), args.windows)
    runs += local
    if ledger is not None:
        runs += bills.experiment_runs(ledger.records, ledger.table)
        notes += ledger.notes
        notes += bills.notes(ledger.records, ledger.table)
    if args.by:
        if ledger is None:
            raise UserError(
                "totals are of experiments", key="--by", cure="give --experiment or --since"
            )
        totals = bills.totals(ledger.records, ledger.table, by=args.by)
        narrow = {args.by: args.by, **TABLES["narrow totals"]}
        tables.append(Table(f"Totals by {args.by}", frame=totals, narrow=narrow))
    if not runs:
        raise UserError(
            "nothing to report", key="cost", cure="give RUN, --published or --experiment"
        )
    base = _baseline(runs, args.baseline)
    prices = rates.used()
    dollars, is_all = _dollars(runs)
    run_tables = _run_tables(runs, base=base, tokens=args.tokens)
    return Report(
        title=f"What the runs cost: {prices_head(prices, args.today)}",
        tables=[*tables, *run_tables, *_price_tables(prices)],
        method=METHOD["cost"],
        notes=[*_run_notes(runs, base), *left_out, *notes, *price_notes(prices, args.today)],
        bars=[(_label(run), run.bill.parts) for run in runs if run.bill.cost],
        total=dollars if is_all else None,
        priced=dollars,
    )


def _baseline(runs: list[Run], name: str | None) -> Run:
    """Return the run of that name, by default the first one."""
    for run in runs:
        if name in (None, run.name):
            return run
    names = dict.fromkeys(run.name for run in runs)  # in order, each once
    raise UserError(
        "not the name of a run",
        key=f"--baseline {name}",
        cure=f"one of: {', '.join(names)}",
    )


def _run_notes(runs: list[Run], base: Run) -> Iterator[str]:
    """Yield the notes on each run, then why some are not compared."""
    for run in runs:
        for note in run.notes:
            yield f"{run.name}: {note}"
    for run in runs:
        reason = run.unlike(base)
        if reason:
            yield f"{run.name}: not compared: {reason}"


def _dollars(runs: list[Run]) -> tuple[float, bool]:
    """Return the dollars of all runs that are not published, and whether all parts have a price."""
    # A budget is for one's own runs, unless the report is of published ones alone.
    own = [run for run in runs if not run.name.startswith("published, ")]
    parts = [run.bill for run in own or runs]
    dollars = sum(bill.cost or 0.0 for bill in parts)
    return dollars, all(bill.cost is not None and not bill.unpriced for bill in parts)


def _run_tables(
    runs: list[Run],
    base: Run,
    tokens: bool,
) -> list[Table]:
    """Return the runs beside the baseline, and what they were paid for if that is recorded."""
    # Cells are objects: numbers of unlike kinds, texts and None share columns.
    rows = pd.DataFrame([_row(run, base, tokens) for run in runs], dtype=object)
    narrow = TABLES["narrow"]
    if tokens:
        rows = rows.rename(columns=_in_tokens)
        narrow = {_in_tokens(head): _in_tokens(cell) for head, cell in narrow.items()}
    tables = [Table(f"Runs, beside {base.name}", frame=rows, narrow=narrow)]

    # A second table for runs whose dollars are recorded by phase.
    paid = []
    for run in runs:
        bill = run.bill
        if len(bill.parts) > 1:
            paid.append({"run": run.name, "sum": bill.cost, **bill.parts})
    if paid:
        frame = pd.DataFrame(paid, dtype=object)
        dollars = dict.fromkeys(frame.columns[1:], DOLLARS)
        tables.append(Table("What it was paid for", frame=frame, formats=dollars))
    return tables


def _in_tokens(head: str) -> str:
    """Return the head of a column for tokens; a line break in it stays where it is."""
    head = head.replace("windows/s", "tokens/s")
    return re.sub(r"1,000(\s)windows", r"1M\1tokens", head)


def _label(run: Run) -> str:
    """Return what stands over a run's bar."""
    bill = run.bill
    low = bill.low or bill.cost
    high = bill.high or bill.cost
    price_range = ""
    if low != high:
        price_range = f" (${low:,.2f} to ${high:,.2f})"
    return f"{run.name}: ${bill.cost:,.2f}{price_range}, {run.work.paid_hours:.2f} h"


def _row(run: Run, base: Run, tokens: bool) -> dict[str, object]:
    """Return the columns of `run`, and those that compare it with `base`."""
    work = run.work
    bill = run.bill
    row = {}
    for head, path in TABLES["cost"].items():
        row[head] = attrgetter(path)(run)
    row["EM"] = run.scores.get("exact")
    row["F1"] = run.scores.get("f1")
    row |= dict.fromkeys(["kinds", "$/1,000 windows", "faster", "cheaper"])

    # Thousands of windows, or with --tokens millions of tokens.
    amount = work.windows / 1e3
    if tokens:
        tokens_per_window = work.tokens or 0
        row["windows/s"] = (work.throughput or 0) * tokens_per_window or None
        amount = work.windows * tokens_per_window / 1e6
    if bill.cost is not None and not bill.unpriced and amount:
        row["$/1,000 windows"] = bill.cost / amount

    # A range of one price is none.
    if bill.low == bill.high:
        row["low"] = None
        row["high"] = None
    if work.stops is not None:
        kinds = [f"{count} {kind}" for kind, count in sorted(work.stops.items())]
        row["stops"] = sum(work.stops.values())
        row["kinds"] = ", ".join(kinds) or None
    if work.running:
        row["run"] += " (running)"

    # Beside the baseline, unless a note says why not.
    if run.unlike(base):
        row["run"] += " *"
        return row
    if work.paid_hours:
        row["faster"] = base.work.paid_hours / work.paid_hours
    partly = bill.unpriced or base.bill.unpriced
    if bill.cost is not None and base.bill.cost and not partly:
        row["cheaper"] = 1 - bill.cost / base.bill.cost
    return row


def _price_tables(prices: list[Price]) -> list[Table]:
    """Return all prices that the report used, with day and source; no table if there are none."""
    rows = []
    for price in prices:
        columns = {"instance": price.instance, **vars(price)}
        rows.append({name.replace("_", " "): value for name, value in columns.items()})
    formats = dict.fromkeys(
        ["on demand", "spot", "spot low", "spot high"],
        "${:,.4f}",
    )
    formats |= {"slots": "{}", "teraflops": "{:,.0f}"}
    if not rows:
        return []
    frame = pd.DataFrame(rows, dtype=object)
    return [Table("Prices", frame=frame, formats=formats, long=True)]
