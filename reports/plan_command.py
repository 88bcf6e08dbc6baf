"""The `plan` subcommand: its options, and from parsed arguments to a report."""

import argparse
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reports.tables import Report


def add_options(plan: argparse.ArgumentParser) -> None:
    """What is left out has the default of `plan.Settings`."""
    add = plan.add_argument
    work = plan.add_mutually_exclusive_group()
    work.add_argument("--windows", type=float, help="to train on; default: the published run's")
    work.add_argument("--data", metavar="FILE", help="count the windows of this SQuAD file")
    default = Path("configs/distributed64.yaml")
    add("--config", type=Path, default=default, help="how --data is cut into windows")
    add("--epochs", type=float, default=2, help="of --data")
    plan.set_defaults(throughput=None, pool=None, slots=None)
    published = "measured; default: the published V100 figures"
    add("--throughput", metavar="SLOTS=WINDOWS/S,...@INSTANCE", help=published)
    add("--pool", nargs="+", metavar="INSTANCE", help="default: all with a price")
    add("--slots", type=int, nargs="+", metavar="N", help="default: 1 4 8 16 32 64")
    add("--deadline", type=float, metavar="HOURS", dest="deadline_hours")
    add("--batch", type=int, help="windows a step; default: 48, 256 from 16 slots")
    add("--checkpoint-seconds", type=float)
    period = {"metavar": "STEPS", "dest": "period_steps"}
    add("--checkpoint-period", type=int, help="instead of the best", **period)
    add("--restart-seconds", type=float, help="container to first step")
    add("--boot-seconds", type=float)
    add("--image-seconds", type=float)
    add("--wait-seconds", type=float, help="for capacity, on average")
    add("--fallback-seconds", type=float, help="after such a wait go on, on demand")
    add("--notice-read", type=float, metavar="SHARE", help="of the two-minute notices")
    rates = plan.add_mutually_exclusive_group()
    rates.add_argument("--hourly", type=float, help="reclaims per machine-hour")
    rates.add_argument("--trace", type=Path, metavar="CSV", help="recorded reclaims")
    add("--runs", type=int)
    add("--seed", type=int)


def run(args: argparse.Namespace) -> "Report":
    """Expected time and cost of every option. Imports here: --help needs none of the libraries."""
    from reports import live, plan, prices
    from reports.plan_report import plan_report
    from reports.published import EPOCHS, WINDOWS
    from reports.reclaims import load_trace
    from reports.speed import count_windows, parse_speed

    known = prices.load_prices(args.prices or prices.PRICE_FILE)
    instances = args.pool or [name for name, price in known.items() if not price.retired]
    for instance in instances:
        prices.find(known, instance)
    names = {field.name for field in dataclasses.fields(plan.Settings)}
    given = {"windows": EPOCHS * WINDOWS}
    given |= {name: value for name, value in vars(args).items() if name in names}
    if "data" in args:
        given["windows"] = count_windows(args.data, args.config) * args.epochs
    if "trace" in args:
        given["trace"] = load_trace(args.trace)
    settings = plan.Settings(**given)
    plan.check_settings(settings)
    known, notes = live.priced(args, known, instances)
    speed = parse_speed(args.throughput)
    choices = plan.options(known, instances, args.slots, speed, args.pool is not None)
    return plan_report(settings, plan.plan(settings, list(choices)), notes, args.today)
