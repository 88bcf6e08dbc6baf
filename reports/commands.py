"""Commands `cost` and `scaling`, from arguments to a report, and output of reports."""

import argparse
import sys
from collections.abc import Mapping

import pandas as pd

from cluster import live_prices, prices, records
from cluster.prices import Price, find, load_prices
from cluster.published import FINE_TUNING
from detalbert import atomic
from detalbert.errors import UserError, first_line
from reports import bills, plan
from reports.cost import cost_report
from reports.report import Report, to_html, to_json, to_markdown, to_terminal
from reports.runs import machine_of, published_runs, read_run
from reports.scaling import scaling_report


def write(report: Report, args: argparse.Namespace) -> int:
    """Write the report; return the exit status: 0, or 3 if over --budget. The page is written
    first: if that fails, nothing is printed.
    """
    if args.budget is not None and report.total is None:
        raise UserError("--budget: not all of it has a price; give --price-pool or @INSTANCE")
    if args.html is not None:
        try:
            with atomic.whole_file(args.html) as file:
                file.write(to_html(report))
        except OSError as error:
            said = f"cannot write there ({first_line(error)})"
            raise UserError(f"--html {args.html}: {said}") from None
    if args.json:
        sys.stdout.write(to_json(report))
    elif args.markdown:
        sys.stdout.write(to_markdown(report))
    elif args.csv:
        sys.stdout.write(report.tables[0].frame.to_csv(index=False))
    else:
        to_terminal(report, sys.stdout, args.wide)
    if args.budget is None or (over := (report.total or 0.0) - args.budget) <= 0:
        return 0
    total, budget = f"${report.total:,.2f}", f"${args.budget:,.2f}"
    print(f"reports: {total} is ${over:,.2f} over the budget of {budget}", file=sys.stderr)
    return 3


def cost(args: argparse.Namespace) -> Report:
    """Report the cost of published, local and cluster runs."""
    known = load_prices(args.prices or prices.PRICE_FILE)
    priced_as = dict(_priced_as(text, known) for text in args.price_pool)
    found = _records(args)
    if args.by and found is None:
        raise UserError("--by: totals are of a cluster's experiments; give --experiment or --since")
    wanted = {row.instance for row in FINE_TUNING} if args.published else set()
    wanted |= {text.rpartition("@")[2].partition(":")[0] for text in args.run if "@" in text}
    if found:
        found = found._replace(pools={**found.pools, **priced_as})
        held = {a.pool for a in found.allocations}
        wanted |= {pool.instance for name, pool in found.pools.items() if name in held}
    used = sorted(find(known, instance).instance for instance in wanted if instance)
    known, notes = live_prices.priced(args, known, used)
    rows, sums = published_runs(known) if args.published else [], None
    rows += [read_run(text, known, args.windows) for text in args.run]
    if found:
        spot = sorted({pool.instance for pool in found.pools.values() if pool.spot} & {*used})
        since = min((a.start for a in found.allocations), default=found.until) - records.LOOK_BACK
        past, more = live_prices.history(args, known, spot, since, found.until)
        table = bills.segments(found, known, past)
        rows += bills.experiment_runs(found, table)
        notes += [*more, *found.notes, *bills.notes(table)]
        sums = bills.totals(found, table, args.by) if args.by else None
    own = [known[instance] for instance in used]
    return cost_report(rows, args.baseline, own, notes, args.today, args.tokens, sums)


def scaling(args: argparse.Namespace) -> Report:
    """Report efficiency over slots, published and measured; one series per model and data."""
    known = load_prices(args.prices or prices.PRICE_FILE)
    series = []
    for text in args.run:
        label, equals, path = text.partition("=")
        label, path = (label, path) if equals else ("", text)
        run = read_run(path, known, None)
        series.append((label or "measured, windows/s over slots", run))
    if cluster := _records(args):
        for run in bills.experiment_runs(cluster, bills.segments(cluster, known, {})):
            machine = run.hardware.partition(" x ")[2] or run.hardware
            running = ", still running" if run.running else ""
            label = f"{run.model or 'a model'} on {machine}{running}, windows/s over slots"
            series.append((label, run))
    return scaling_report(series, args.published)


def _records(args: argparse.Namespace) -> records.Records | None:
    if not args.experiment and args.since is None:
        return None
    until = args.until or pd.Timestamp.now("UTC")
    if args.since is not None and args.since >= until:
        raise UserError(f"--since {args.since}: not before --until ({until})")
    return records.fetch(args.master, args.user, args.experiment, args.since, until)


def _priced_as(text: str, known: Mapping[str, Price]) -> tuple[str, records.Pool]:
    name, _, machine = text.partition("=")
    price, spot = machine_of(f"--price-pool {name}=", machine, known)
    return name, records.Pool(price.instance, spot)


COMMANDS = {"cost": cost, "plan": plan.run, "scaling": scaling}
