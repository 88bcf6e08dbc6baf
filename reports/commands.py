"""The three commands: from parsed arguments to a report, and from a report to its readers."""

import argparse
import datetime
import os
import sys

from detalbert.errors import UserError
from reports import bills, live, plan_command, prices, records
from reports.cost import cost_report
from reports.page import to_html, write_whole
from reports.pretraining import read_pretraining
from reports.prices import find, load_prices
from reports.published import FINE_TUNING
from reports.runs import published_runs, read_run
from reports.scaling import measured, scaling_report
from reports.tables import Report, to_json, to_markdown, to_terminal


def write(report: Report, args: argparse.Namespace) -> None:
    """The page first: when it cannot be written, nothing is printed."""
    if args.html is not None:
        write_whole(args.html, to_html(report))
    if args.json:
        sys.stdout.write(to_json(report))
    elif args.markdown:
        sys.stdout.write(to_markdown(report))
    else:
        to_terminal(report, sys.stdout)


def cost(args: argparse.Namespace) -> Report:
    """Published, local and cluster runs, priced."""
    known = load_prices(args.prices or prices.PRICE_FILE)
    priced_as = dict(_priced_as(text) for text in args.price_pool)
    found = _records(args)
    wanted = [row.instance for row in FINE_TUNING] if args.published else []
    wanted += [text.rpartition("@")[2].partition(":")[0] for text in args.run if "@" in text]
    pools = {**(found.pools if found else {}), **priced_as}
    if found:
        held = {a.pool for e in found.experiments for t in e.trials for a in t.allocations}
        wanted += [pools[name].instance for name in held if name in pools]
    wanted = sorted({instance for instance in wanted if instance})
    for instance in wanted:
        find(known, instance)
    known, notes = live.priced(args, known, wanted)
    rows = published_runs(known) if args.published else []
    rows += [read_run(text, known, args.windows) for text in args.run]
    if found:
        rows += bills.experiment_runs(found, known, priced_as)
        notes += found.notes
    return cost_report(rows, args.baseline, [known[i] for i in wanted], notes, args.today)


def scaling(args: argparse.Namespace) -> Report:
    """Efficiency over slots, published and measured."""
    known = load_prices(args.prices or prices.PRICE_FILE)
    points, pretraining = [], []
    for text in args.run:
        label, equals, path = text.partition("=")
        label, path = (label, path) if equals else ("", text)
        if found := read_pretraining(path, label):
            pretraining.append(found)
            continue
        label = label or "measured, windows/s over slots"
        points.append(measured(label, read_run(path, known, None)))
    cluster = _records(args)
    if cluster:
        rows = bills.experiment_runs(cluster, known, {})
        points += [measured("on the cluster, windows/s over slots", run) for run in rows]
    return scaling_report(points, args.published, pretraining)


def _records(args: argparse.Namespace) -> records.Records | None:
    if not args.experiment:
        return None
    from determined.common import api

    master = api.canonicalize_master_url(args.master or api.get_default_master_url())
    until = args.until or datetime.datetime.now(datetime.timezone.utc)
    return records.fetch(master, args.user or os.environ.get("DET_USER"), args.experiment, until)


def _priced_as(text: str) -> tuple[str, records.Pool]:
    name, equals, machine = text.partition("=")
    instance, _, market = machine.partition(":")
    if not equals or not instance or market not in ("", "spot", "on-demand"):
        raise UserError(f"--price-pool {text}: expected POOL=INSTANCE or POOL=INSTANCE:spot")
    return name, records.Pool(name, instance, market == "spot")


COMMANDS = {"cost": cost, "plan": plan_command.run, "scaling": scaling}
