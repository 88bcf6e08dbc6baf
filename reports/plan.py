"""The command `plan`: time and cost of every pool and slot count, before anything is paid for."""

import argparse
import dataclasses
import math
import os
import re
import socket
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from cluster import live_prices
from cluster import prices as price_file
from cluster.prices import Price, find_price
from cluster.published import EPOCHS, LENGTH, WINDOWS
from detalbert.errors import UserError
from detalbert.settings.yaml_files import read_yaml
from lm.hparams import PARSERS
from reports import settings, simulate
from reports.plots import pareto_plot
from reports.report import COLUMNS, Report, Table, frame, price_table
from reports.settings import Settings, Speed, parse_speed
from workloads import parsers

if TYPE_CHECKING:
    from cluster.layouts import Pace

HUB = "huggingface.co"
WIDE = 8  # slots of a machine whose network is like that of the measured ones


class Option(NamedTuple):
    """A machine type, on spot or on demand: a row of the table, and one for each case."""

    price: Price
    row: dict[str, Any]
    cases: list[dict[str, Any]]  # low, middle, high


class Work(NamedTuple):
    """The work that every option is planned for, in windows or in tokens."""

    amount: float
    rules: Settings
    speed: "Speed | Pace"
    markets: Mapping[str, simulate.Market]


def run(args: argparse.Namespace) -> Report:
    """Report expected time and cost of every option."""
    rules = settings.parse_settings(args)
    seen, known = markets(rules, args.trace), price_file.load_prices(args.prices)
    paced = _pace(args.config) if rules.tokens and not args.throughput else None
    speed = paced or parse_speed(args.throughput, known, LENGTH if rules.tokens else 1)
    choices = offers(args, known, speed)
    amount = rules.tokens or rules.windows or EPOCHS * WINDOWS
    if args.data is not None:
        amount = count_windows(args.data, args.config) * rules.epochs
    known, notes = live_prices.priced(args, known, sorted({p.instance for p, _ in choices}))
    if rules.tokens and not (paced or args.throughput):
        cure = "give --throughput for another model or task"
        notes.append(f"speeds are those published for fine-tuning on SQuAD; {cure}")
    work = Work(amount, rules, speed, seen)
    pairs = [(known[price.instance], slots) for price, slots in choices]
    options = [evaluate_option(work, *pair, spot) for pair in pairs for spot in (True, False)]
    used = list({price.instance: price for price, _ in pairs}.values())
    return _report(work, options, used, [*notes, *price_file.price_notes(used, args.today)])


def _pace(config: Path) -> "Pace | None":
    """Return the planner's speeds for a config; None unless it trains a language model."""
    content = read_yaml(config)
    if parsers(content) is not PARSERS:
        return None
    from cluster.layouts import Pace  # it imports torch, which other plans do without

    return Pace(config, content)


def count_windows(train: str, config: Path) -> int:
    """Count the windows of a SQuAD-shaped file with the tokenizer and lengths of a config."""
    if "HF_HUB_OFFLINE" not in os.environ and not urllib.request.getproxies():
        try:
            socket.create_connection((HUB, 443), timeout=5).close()
        except OSError:
            os.environ["HF_HUB_OFFLINE"] = "1"  # else its library tries for a minute, in 22 lines
    from data import load_split, load_tokenizer
    from detalbert.settings import experiment
    from detalbert.settings.hparams import parse_data_config, parse_hparams
    from detalbert.squad.sources import open_source

    loaded = experiment.load(config)
    hparams = parse_hparams(experiment.single_values(loaded.get("hyperparameters") or {}))
    data = parse_data_config({**(loaded.get("data") or {}), "train": train})
    open_source(train, "train", Path(data.cache_dir))  # first: a missing file is told at once
    return load_split(data, "train", load_tokenizer(data, hparams), hparams).counts["windows"]


def offers(
    args: argparse.Namespace, known: Mapping[str, Price], speed: "Speed | Pace"
) -> list[tuple[Price, int]]:
    """Return all fitting pairs of instance type (default: those that AWS launches) and slots.

    Jobs over several machines narrower than WIDE only if --pool names them. Raises UserError if no
    instance fits a requested slot count.
    """
    pool, slots = args.pool, args.slots
    types = [find_price(known, instance) for instance in dict.fromkeys(pool or known)]
    types = [price for price in types if pool or not price.retired]
    found: list[tuple[Price, int]] = []
    for count in dict.fromkeys(slots or [1, 4, 8, 16, 32, 64]):
        wide = [price for price in types if pool or price.slots >= WIDE or count == price.slots]
        whole = [price for price in wide if count % price.slots == 0]
        fitting = [(price, count) for price in whole if speed.fits(price, count)]
        if slots and types and not fitting:
            max(types, key=lambda price: price.slots).machines(count)
        found += fitting
    if not found:
        raise UserError("plan: no instance has machines for these slots; change --slots or --pool")
    return found


def markets(rules: Settings, trace: Path | None) -> dict[str, simulate.Market]:
    """Return the low, middle and high market: as recorded, or three times the given one."""
    if trace is not None:
        return dict.fromkeys(simulate.CASES, simulate.load_trace(trace))
    changes: dict[str, Any] = {} if rules.hourly is None else {"hourly": rules.hourly}
    if rules.wait_seconds is not None:
        changes["wait_seconds"] = rules.wait_seconds
    elif changes:
        changes["wait_seconds"] = simulate.CASES["middle"].wait_seconds
    return {name: dataclasses.replace(case, **changes) for name, case in simulate.CASES.items()}


def evaluate_option(work: Work, price: Price, slots: int, spot: bool) -> Option:
    """Simulate an option."""
    rate, source = work.speed.at(slots, price)
    rules, step = work.rules, (work.rules.batch or work.speed.batch(slots)) / rate
    seconds, hourly = work.amount / rate, price.spot_range() if spot else (price.on_demand,) * 3
    job = simulate.SpotJob(seconds, seconds, price.machines(slots), price.on_demand, rules)
    seen, steps = work.markets, None
    if spot:
        middle, high = (seen[case].alike() for case in ("middle", "high"))
        steps = rules.checkpoint_period or simulate.best_period(job, middle, high, step)
        job = dataclasses.replace(job, period_seconds=min(steps * step, seconds))
        steps = max(1, round(job.period_seconds / step))
    else:
        seen = dict.fromkeys(simulate.CASES, simulate.Constant(0.0))
        job = dataclasses.replace(job, rules=dataclasses.replace(rules, runs=10))
    paid = [dataclasses.replace(job, price=dollars) for dollars in hourly]
    cases = [_figures(name, at, seen[name]) for name, at in zip(seen, paid, strict=True)]
    row: dict[str, Any] = {"front": "", "hardware": f"{job.machines} x {price.instance}"}
    row |= {"market": "spot" if spot else "on demand", "slots": slots}
    for what in ("hours", "cost"):
        row[what] = cases[1][what]
        row[f"{what} low"] = min(case[f"{what} 5 %"] for case in cases) if spot else None
        row[f"{what} high"] = max(case[f"{what} 95 %"] for case in cases) if spot else None
    row |= {"on demand": None, "speed": source, "steps": steps}
    row["minutes"] = job.period_seconds / 60 if spot else None
    row |= {name: cases[1].get(name) for name in ("in time", "reclaims", "lost h", "waiting h")}
    kind, many = ("windows", 1000) if rules.tokens is None else ("tokens", 1_000_000)
    row |= {f"$/{many:,} {kind}": row["cost"] / work.amount * many, f"{kind}/s": rate}
    return Option(price, row, cases)


def _figures(case: str, job: simulate.SpotJob, market: simulate.Market) -> dict[str, Any]:
    """Return means over the runs, and their 5 and 95 % quantiles."""
    runs, alike = simulate.simulate(job, market, job.rules.runs, job.rules.seed), market.alike()
    found = {"case": case, "reclaims/h": alike.hourly, "wait min": alike.wait_seconds / 60}
    found |= {"$/h": job.price, **runs.mean().to_dict()}
    for what in ("hours", "cost"):  # nothing is interpolated: runs that never end do no harm
        for share in (5, 95):
            found[f"{what} {share} %"] = runs[what].quantile(share / 100, "nearest")
    if job.rules.deadline is not None:
        found["in time"] = (runs["hours"] <= job.rules.deadline).mean()
    return found


def mark_front(rows: Sequence[dict[str, Any]]) -> None:
    """Mark with * the options that no other one beats in both time and cost."""
    cheapest = math.inf

    def figures(row: dict[str, Any]) -> tuple[float, float, int]:
        return round(row["hours"], 9), round(row["cost"], 6), int(row["hardware"].split()[0])

    for row in sorted(rows, key=figures):
        if row["cost"] < cheapest:
            row["front"], cheapest = "*", row["cost"]


def recommended(options: Sequence[Option], deadline: float | None) -> Option:
    """Return the cheapest option of which 95 % of runs meet the deadline, else the fastest."""
    finite = [option for option in options if math.isfinite(option.row["cost"])]
    if not finite:
        raise UserError("plan: no option ever finishes at this interruption rate; lower it")
    safe = [o for o in finite if deadline is None or o.cases[1]["hours 95 %"] <= deadline]
    return min(safe or finite, key=lambda option: option.row["cost" if safe else "hours"])


def _report(work: Work, options: list[Option], used: list[Price], notes: list[str]) -> Report:
    rules, rows = work.rules, [option.row for option in options]
    best = recommended(options, rules.deadline)
    mark_front(rows)
    fixed = {row["hardware"]: row["cost"] for row in rows if row["market"] == "on demand"}
    for row in rows:
        row["on demand"] = fixed[row["hardware"]]
    full = frame(sorted(rows, key=lambda row: row["cost"])).dropna(axis=1, how="all")
    rest = full["front"] != "*"
    head = "Options: the front (*: none is both faster and cheaper) and the ten cheapest more"
    name = f"{best.row['hardware']}, {best.row['market']}"
    shown, formats = COLUMNS["plan"], COLUMNS["plan"]["formats"]
    tables = [
        Table(head, full[~rest | (rest.cumsum() <= 10)], formats, narrow=shown["narrow"]),
        Table(f"Recommended: {name}", frame(best.cases), formats, narrow=shown["narrow_cases"]),
        Table("All options", full, formats, long=True),
        price_table(used),
    ]
    done = full[full["cost"].map(math.isfinite)].infer_objects()
    title = f"What {work.amount:,.0f} {'tokens' if rules.tokens else 'windows'} would take and cost"
    plot, yaml = pareto_plot(done, rules.deadline), snippet(rules, best)
    return Report(title, tables, method(), notes, [plot], yaml, best.row["cost"])


def snippet(rules: Settings, best: Option) -> str:
    """Return the experiment's YAML keys for the recommended option."""
    row, (late, worst) = best.row, (case["hours 95 %"] for case in best.cases[1:])
    missed = rules.deadline is not None and late > rules.deadline
    advice = "  # checkpoint_period: once per epoch, the default"
    if row["steps"] is not None:
        minutes = f"# steps, {row['minutes']:.0f} min"
        advice = f"  checkpoint_period: {row['steps']}  {minutes}\n  spot_notice: true"
    return (
        f"# {row['hardware']}, {row['market']}: {row['hours']:.2f} h, ${row['cost']:,.2f} expected;"
        f"\n# 95 % of runs within {late:.2f} h, at the high rate within {worst:.2f} h"
        f"{'; MISSES THE DEADLINE' if missed else ''}\nhyperparameters:\n{advice}\n"
        f"resources:\n  slots_per_trial: {row['slots']}\n"
        f"  resource_pool: <<a pool of {best.price.instance}, {row['market']}>>"
    )


def method() -> list[str]:
    """Return the rules of "How a plan is made" in reports/README.md, without markup."""
    text = Path(__file__).with_name("README.md").read_text(encoding="utf-8")
    text = text.split("## How a plan is made\n")[1].split("\n## ")[0]
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", re.sub(r"\*\*|`", "", text))
    return [" ".join(point.split()) for point in text.split("\n- ")[1:]]
