"""The three commands: from parsed arguments to a report, and from a report to its readers."""

import argparse
import dataclasses
import datetime
import os
import sys
from collections.abc import Sequence

from detalbert.errors import UserError
from reports import bills, live, plan, prices, records
from reports.cost import cost_report
from reports.page import to_html, write_whole
from reports.plan_report import plan_report
from reports.pretraining import read_pretraining
from reports.prices import Price, find, load_prices
from reports.published import EPOCHS, FINE_TUNING, WINDOWS
from reports.reclaims import load_trace
from reports.runs import published_runs, read_run
from reports.scaling import measured, scaling_report
from reports.speed import count_windows, parse_speed
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
    known, notes = _live(args, known, wanted)
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


def plan_ahead(args: argparse.Namespace) -> Report:
    """Expected time and cost of every option."""
    known = load_prices(args.prices or prices.PRICE_FILE)
    instances = args.pool or list(known)
    for instance in instances:
        find(known, instance)
    settings = _settings(args)
    plan.check_settings(settings)
    known, notes = _live(args, known, instances)
    speed = parse_speed(args.throughput)
    choices = plan.options(known, instances, args.slots, speed, args.pool is not None)
    return plan_report(settings, plan.plan(settings, list(choices)), notes, args.today)


def _settings(args: argparse.Namespace) -> plan.Settings:
    """What was given; the rest has the defaults of `plan.Settings`."""
    names = {field.name for field in dataclasses.fields(plan.Settings)}
    given = {"windows": EPOCHS * WINDOWS}
    given |= {name: value for name, value in vars(args).items() if name in names}
    if "data" in args:
        given["windows"] = count_windows(args.data, args.config) * args.epochs
    if "monthly" in args:
        given["hourly"] = prices.hourly_hazard(args.monthly)
    if "trace" in args:
        given["trace"] = load_trace(args.trace)
    return plan.Settings(**given)


def _live(
    args: argparse.Namespace, known: dict[str, Price], wanted: Sequence[str]
) -> tuple[dict[str, Price], list[str]]:
    if not args.live or not wanted:
        return known, []
    region = args.region or known[wanted[0]].region
    return live.refresh(known, wanted, region, args.today)


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


COMMANDS = {"cost": cost, "plan": plan_ahead, "scaling": scaling}
