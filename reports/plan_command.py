"""The `plan` subcommand: its settings, each written once, and from arguments to a report.

Nothing is imported here that `--help` could do without.
"""

import argparse
import functools
import math
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detalbert.errors import UserError

if TYPE_CHECKING:
    from reports.tables import Report

DAY = 86_400.0
MOST_SLOTS = 1024


def _set(default: Any, text: str, low: float, high: float, whole: bool = False) -> Any:
    limits = {"low": low, "high": high, "whole": whole}
    return field(default=default, metadata={"help": text, "limits": limits})


@dataclass(frozen=True)
class Settings:
    """What is planned for: each field is a flag, with its unit, its default and its limits."""

    windows: float | None = _set(None, "windows to train on", 1, 1e12)
    tokens: float | None = _set(None, "tokens to train on, instead of windows", 1, 1e18)
    epochs: float = _set(2.0, "of --data", 1e-3, 1e6)
    deadline: float | None = _set(None, "hours", 1e-3, 1e6)
    batch: float | None = _set(None, "windows (or tokens) a step; 48, 256 from 16 slots", 1, 1e9)
    checkpoint_seconds: float = _set(25.0, "to write one", 1e-3, DAY)
    checkpoint_period: int | None = _set(None, "steps, instead of the best", 1, 1e9, True)
    restart_seconds: float = _set(60.0, "from the container's start to the first step", 0, DAY)
    boot_seconds: float = _set(180.0, "of a machine", 0, DAY)
    image_seconds: float = _set(120.0, "to pull it", 0, DAY)
    wait_seconds: float | None = _set(None, "for capacity, on average; as recorded", 0, 30 * DAY)
    notice_read: float = _set(0.0, "share of the two-minute notices that is read", 0, 1)
    hourly: float | None = _set(None, "reclaims per machine-hour; as recorded", 0, 60)
    runs: int = _set(10_000, "of each option and case", 10, 1e6, True)
    seed: int = _set(0, "of the random numbers", 0, 2**63, True)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The settings, each checked as its flag is read, and what they are taken from."""
    add = parser.add_argument
    for each in fields(Settings):
        flag, shown = _flag(each.name), "" if each.default is None else f" ({each.default:g})"
        check = functools.partial(number, flag, **each.metadata["limits"])
        add(flag, type=check, metavar="N", help=each.metadata["help"] + shown)
    add("--data", metavar="FILE", help="count the windows of this SQuAD file")
    config = Path("configs/distributed64.yaml")
    add("--config", type=Path, default=config, help="how --data is cut into windows")
    speeds = "measured, a second; default: the published V100 figures"
    add("--throughput", metavar="SLOTS=WINDOWS,...@INSTANCE", help=speeds)
    add("--pool", nargs="+", metavar="INSTANCE", help="all that AWS still launches")
    count = functools.partial(number, "--slots", low=1, high=MOST_SLOTS, whole=True)
    add("--slots", nargs="+", metavar="N", type=count, help="1 4 8 16 32 64")
    add("--trace", type=Path, metavar="FILE", help="recorded capacity, replayed")


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def number(flag: str, text: str, low: float, high: float, whole: bool = False) -> Any:
    """Raises UserError naming the flag for text that is no number within the limits."""
    try:
        value = int(text) if whole else float(text)
    except ValueError:
        value = math.nan
    if not low <= value <= high:
        kind = "whole number" if whole else "number"
        raise UserError(f"{flag} {text}: expected a {kind} from {low:,.10g} to {high:,.10g}")
    return value


def settings_of(args: argparse.Namespace) -> Settings:
    """Raises UserError for two that contradict each other."""
    given = {name: value for name, value in vars(args).items() if value is not None}
    for group in (("windows", "tokens", "data"), ("hourly", "trace"), ("wait_seconds", "trace")):
        if len(both := [_flag(name) for name in group if name in given]) > 1:
            raise UserError(f"{' and '.join(both)}: give one of them")
    if "epochs" in given and "data" not in given:
        raise UserError("--epochs: only --data has epochs; give both")
    return Settings(**{e.name: given[e.name] for e in fields(Settings) if e.name in given})


def run(args: argparse.Namespace) -> "Report":
    """Expected time and cost of every option."""
    from reports import live, plan, prices
    from reports.plan_report import plan_report
    from reports.published import EPOCHS, LENGTH, WINDOWS
    from reports.reclaims import load_trace
    from reports.speed import count_windows, parse_speed

    settings = settings_of(args)
    trace = load_trace(args.trace) if args.trace else None
    known = prices.load_prices(args.prices or prices.PRICE_FILE)
    unit = LENGTH if settings.tokens is not None else 1
    speed = parse_speed(args.throughput, known, unit)
    choices = plan.options(known, args.pool, args.slots or [], speed)
    work = settings.tokens or settings.windows or EPOCHS * WINDOWS
    if args.data is not None:
        work = count_windows(args.data, args.config) * settings.epochs
    wanted = sorted({option.price.instance for option in choices})
    known, notes = live.priced(args, known, wanted)
    choices = plan.options(known, args.pool, args.slots or [], speed)
    seen = plan.markets(settings, trace)
    planned = [plan.plan(settings, work, unit, option, seen) for option in choices]
    return plan_report(settings, work, planned, notes, args.today)
