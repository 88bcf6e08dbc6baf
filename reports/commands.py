"""The three commands: from parsed arguments to a report, and from a report to its readers."""

import argparse
import dataclasses
import os
import sys
from collections.abc import Mapping

import pandas as pd

from detalbert.errors import UserError
from reports import bills, live, plan_command, prices, records
from reports.cost import cost_report
from reports.page import to_html, write_whole
from reports.pretraining import read_pretraining
from reports.prices import Price, find, load_prices
from reports.published import FINE_TUNING
from reports.run import Run
from reports.runs import published_runs, read_run
from reports.scaling import measured, scaling_report
from reports.tables import Report, to_json, to_markdown, to_terminal


def write(report: Report, args: argparse.Namespace) -> int:
    """The page first: when it cannot be written, nothing is printed. Returns the exit status."""
    if args.budget is not None and report.total is None:
        raise UserError("--budget: not all of it has a price; give --price-pool or @INSTANCE")
    if args.html is not None:
        write_whole(args.html, to_html(report))
    if args.json:
        sys.stdout.write(to_json(report))
    elif args.markdown:
        sys.stdout.write(to_markdown(report))
    elif args.csv:
        sys.stdout.write(report.tables[0].frame.to_csv(index=False))
    else:
        to_terminal(report, sys.stdout, args.wide)
    over = 0.0 if args.budget is None else (report.total or 0.0) - args.budget
    if over > 0:
        total = f"${report.total:,.2f} is ${over:,.2f} over the budget of ${args.budget:,.2f}"
        print(f"reports: {total}", file=sys.stderr)
    return 3 if over > 0 else 0


def cost(args: argparse.Namespace) -> Report:
    """Published, local and cluster runs, priced."""
    known = load_prices(args.prices or prices.PRICE_FILE)
    priced_as = dict(_priced_as(text, known) for text in args.price_pool)
    found = _records(args, priced_as)
    if args.by and found is None:
        raise UserError("--by: totals are of a cluster's experiments; give --experiment or --since")
    wanted = {row.instance for row in FINE_TUNING} if args.published else set()
    wanted |= {text.rpartition("@")[2].partition(":")[0] for text in args.run if "@" in text}
    if found:
        held = {a.pool for a in found.allocations}
        wanted |= {pool.instance for name, pool in found.pools.items() if name in held}
    used = sorted(find(known, instance).instance for instance in wanted if instance)
    known, notes = live.priced(args, known, used)
    rows = published_runs(known) if args.published else []
    rows += [read_run(text, known, args.windows) for text in args.run]
    sums = None
    if found:
        table = bills.segments(found, known, _history(args, known, found, notes))
        rows += bills.experiment_runs(found, table)
        notes += [*found.notes, *bills.notes(table)]
        sums = bills.totals(found, table, args.by) if args.by else None
    own = [known[instance] for instance in used]
    return cost_report(rows, args.baseline, own, notes, args.today, args.tokens, sums)


def _history(
    args: argparse.Namespace, known: Mapping[str, Price], found: records.Records, notes: list[str]
) -> dict[str, pd.Series]:
    """With --live, what spot machines cost at the time; AWS keeps 90 days."""
    spot = sorted({p.instance for p in found.pools.values() if p.spot and p.instance in known})
    if not args.live or not spot or not found.allocations:
        return {}
    since = min(a.start for a in found.allocations) - records.LOOK_BACK
    try:
        asked = live.spot_history(spot, args.region or known[spot[0]].region, since, found.until)
        return {name: series for name, series in asked.items() if len(series)}
    except UserError as error:
        if args.live != "try":
            raise
        notes.append(f"{error}; past spot hours have the file's price")
        return {}


def scaling(args: argparse.Namespace) -> Report:
    """Efficiency over slots, published and measured; unlike runs are not in one series."""
    known = load_prices(args.prices or prices.PRICE_FILE)
    pretraining, series = [], []
    for text in args.run:
        label, equals, path = text.partition("=")
        label, path = (label, path) if equals else ("", text)
        if found := read_pretraining(path, label):
            pretraining.append(found)
        else:
            series.append((label or "measured, windows/s over slots", read_run(path, known, None)))
    if cluster := _records(args, {}):
        for run in bills.experiment_runs(cluster, bills.segments(cluster, known, {})):
            machine = run.hardware.partition(" x ")[2] or run.hardware
            running = ", still running" if run.running else ""
            label = f"{run.model or 'a model'} on {machine}{running}, windows/s over slots"
            series.append((label, run))
    first: dict[str, Run] = {}
    for label, run in series:
        base = first.setdefault(label, run)
        if (run.model, run.data) != (base.model, base.data):
            raise UserError(f"{run.name}: not the model and data of {base.name}; give it a LABEL=")
    points = [measured(label, run) for label, run in series]
    return scaling_report(points, args.published, pretraining)


def _records(
    args: argparse.Namespace, priced_as: dict[str, records.Pool]
) -> records.Records | None:
    if not args.experiment and args.since is None:
        return None
    until = args.until or pd.Timestamp.now("UTC")
    if args.since is not None and args.since >= until:
        raise UserError(f"--since {args.since}: not before --until ({until})")
    user = args.user or os.environ.get("DET_USER")
    found = records.fetch(args.master, user, args.experiment, args.since, until)
    return dataclasses.replace(found, pools={**found.pools, **priced_as})


def _priced_as(text: str, known: Mapping[str, Price]) -> tuple[str, records.Pool]:
    name, equals, machine = text.partition("=")
    instance, _, market = machine.partition(":")
    if not equals or not instance or market not in ("", "spot", "on-demand"):
        raise UserError(f"--price-pool {text}: expected POOL=INSTANCE or POOL=INSTANCE:spot")
    return name, records.Pool(find(known, instance).instance, market == "spot")


COMMANDS = {"cost": cost, "plan": plan_command.run, "scaling": scaling}
