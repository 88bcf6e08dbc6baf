"""A plan in words: on a terminal, and as JSON.

The page, the terminal and the JSON share their sentences and tables: what one form shows, the
others say in the same words. Numbers to compute with are in the options of the JSON.
"""

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import yaml
from rich.console import Console
from rich.table import Table

from cluster.configs.masterconf import Pool
from cluster.planning.choice import Recommendation, finishing, front, reasons_against
from cluster.planning.options import Option, Request
from cluster.planning.plan_tables import NUMBERS, Row, span, tables
from detalbert.settings.values import Config

ROWS = 10  # of the table of options
RANGES = "In parentheses: nine of ten runs, over three cases of the spot market and the speed."
NAMED = 8  # options of the front that are named


class Plan(NamedTuple):
    """The options for a run, and the one to take."""

    title: str
    prices: str  # their region and age
    options: Sequence[Option]
    choice: Recommendation
    own: Option | None  # the config as it stands
    notes: Sequence[str]
    request: Request

    @property
    def best(self) -> Option:
        return self.choice.option


def hours(option: Option) -> str:
    """Return an option's hours, with their range."""
    figures = option.figures("hours")
    form = "{:,.1f}" if figures[1] >= 10 else "{:,.2f}"
    return span(figures, form, unit=" h")


def dollars(option: Option) -> str:
    """Return an option's cost, with its range."""
    if option.price is None:
        return "no price"
    figures = option.figures("cost")
    form = "${:,.0f}" if figures[1] >= 100 else "${:,.2f}"
    return span(figures, form)


def place(option: Option) -> str:
    """Return an option's machines and slots."""
    slots = "1 slot" if option.slots == 1 else f"{option.slots} slots"
    if option.search.trials > 1:
        slots += f" a trial, {option.search.trials} trials"
    return f"{option.name} ({slots})"


def is_any(pool: Pool) -> bool:
    """Return whether a pool stands for all machines of a type, and has no name yet."""
    return pool.name.startswith("<<")


def outcome(option: Option) -> str:
    """Return an option with its hours and cost, and why the run should not or cannot take it."""
    if not option.cases:
        return f"{place(option)}, which cannot run: {option.why_not}"
    text = f"{place(option)}: {hours(option)}, {dollars(option)}"
    if option.why_not:
        return f"{text}, and the checker refuses it: {option.why_not}"
    return f"{text}; {option.slow}" if option.slow else text


def recommendation(plan: Plan) -> str:
    """Return what to take, how long it takes, how much it costs, and why."""
    best = plan.best
    return f"Take {place(best)}: {hours(best)}, {dollars(best)}: {plan.choice.why}."


def against(plan: Plan) -> list[str]:
    """Return a sentence each on why not the cheapest, and not the fastest option."""
    sentences = []
    for rank, option, reason in reasons_against(plan.choice, plan.options, plan.request.limits):
        figures = f"{place(option)}, {hours(option)}, {dollars(option)}"
        sentences.append(f"Not the {rank}, {figures}: {reason}.")
    return sentences


def open_options(plan: Plan) -> list[Option]:
    """Return the options of the open table, the cheapest first: the recommended one, the config as
    it stands, the front without near neighbours, then the cheapest.
    """
    by_cost = finishing(plan.options)
    own = [option for option in by_cost if option is plan.own]
    # By rank, each once; as many as the table has rows.
    ranked = dict.fromkeys([plan.best, *own, *spread_front(plan.options), *by_cost])
    return sorted([*ranked][:ROWS], key=by_cost.index)


def spread_front(options: Sequence[Option]) -> list[Option]:
    """Return at most NAMED options of the front; of near neighbours one stays."""
    spread = list(front(options))
    while len(spread) > NAMED:
        # Along the front hours rise and dollars fall: the logarithm of their ratio is a place on
        # it. The option goes whose two neighbours are closest to each other; the ends stay.
        places = [math.log(option.mean("hours") / option.mean("cost")) for option in spread]
        gaps = [places[number + 1] - places[number - 1] for number in range(1, len(spread) - 1)]
        del spread[1 + gaps.index(min(gaps))]
    return spread


def option_rows(plan: Plan) -> list[Row]:
    """Return the rows of `open_options`; * marks those that none beats in both time and cost."""
    unbeaten = list(front(plan.options))
    rows = []
    for option in open_options(plan):
        mark = "* " if option in unbeaten else ""
        row: Row = {
            "option": f"{mark}{option.name}",
            "slots": option.slots,
            "hours": hours(option),
            "cost": dollars(option),
            "speed": speed_source(option),
        }
        rows.append(row)
    return rows


def speed_source(option: Option) -> str:
    """Return where the speed of an option is from."""
    return option.estimate.rate.source if option.estimate else "not known"


def snippet(plan: Plan) -> str:
    """Return the YAML keys of the recommended option."""
    best = plan.best
    region = f" at prices of {best.price.region}" if best.price else ""
    comment = f"# {best.name}: {hours(best)}, {dollars(best)}{region}\n"
    sections: Row = {}
    if best.keys:
        sections["hyperparameters"] = dict(best.keys)
    sections["resources"] = {"slots_per_trial": best.slots, "resource_pool": best.pool.name}
    return comment + yaml.safe_dump(sections, sort_keys=False, default_flow_style=False)


def refused(plan: Plan) -> list[str]:
    """Return a line for each reason why options are not recommended, with hours and dollars of
    those that could run.
    """
    # Options with one reason share a line: all of a retired type have one.
    by_reason: dict[str, list[str]] = {}
    for option in plan.options:
        if option.why_not:
            text = place(option)
            if option.cases:
                text += f" ({hours(option)}, {dollars(option)})"
            by_reason.setdefault(option.why_not, []).append(text)
    return [f"{', '.join(options)}: {reason}" for reason, options in by_reason.items()]


def endless(plan: Plan) -> str:
    """Return the options that never end where reclaims are frequent; empty if there is none."""
    options = [option for option in plan.options if not option.why_not and not option.ends]
    if not options:
        return ""
    names = ", ".join(place(option) for option in options)
    return f"never ends where reclaims are frequent, so not recommended: {names}"


def method() -> list[str]:
    """Return the rules of cluster/planning.md, without markup."""
    # One text for both: the page of the repository and the method below each plan.
    page = Path(__file__).parents[1].joinpath("planning.md").read_text(encoding="utf-8")
    _, _, section = page.partition("## How a plan is made\n")
    section, _, _ = section.partition("\n## ")
    section = re.sub(r"\*\*|`", "", section)  # bold and code
    section = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", section)  # links
    _, *points = section.split("\n- ")
    return [" ".join(point.split()) for point in points]


def as_json(plan: Plan) -> Config:
    """Return all figures; null where one is infinite."""
    result = {
        "sentence": recommendation(plan),
        "against": against(plan),
        "prices": plan.prices,
        "recommended": _figures(plan.best),
        "own": plan.own and _figures(plan.own),
        "options": [_figures(option) for option in plan.options],
        **tables(plan.best),
        "yaml": snippet(plan),
        "notes": list(plan.notes),
        "method": method(),
    }
    # JSON has no infinity: Python writes the name Infinity, which is read back as null.
    return json.loads(json.dumps(result), parse_constant=lambda name: None)


def _figures(option: Option) -> Row:
    row: Row = {
        "machines": option.all_machines,
        "instance": option.pool.instance,
        "spot": option.pool.spot,
        "slots": option.slots,
        "pool": option.pool.name,
        "trials": option.search.trials,
        "why_not": option.why_not or None,
        "slow": option.slow or None,
        "rate": option.estimate.rate._asdict() if option.estimate else None,
    }
    if option.cases:
        row["hours"] = option.figures("hours")
        row["cost"] = option.figures("cost") if option.price else None
        row["cases"] = [
            {
                "case": case.name,
                "reclaims/h": case.market.hourly,
                "wait min": case.market.wait_seconds / 60,
                "$/h": case.hourly,
                **case.figures,
            }
            for case in option.cases
        ]
        row |= {"checkpoint_period": option.period, "keys": dict(option.keys)}
    return row


def print_plan(plan: Plan) -> None:
    """Print the sentence, the tables, the options, the YAML and the notes."""
    print(f"{plan.title}: {recommendation(plan)}")
    for sentence in against(plan):
        print(sentence)
    print(f"{plan.prices[0].upper()}{plan.prices[1:]}. {RANGES}")
    search = plan.best.search
    if search.trials > 1:
        print(f"A search: {search.describe()}. Memory and time are of a trial.")
    if plan.own is not None and plan.own is not plan.best:
        print(f"As it stands: {outcome(plan.own)}.")
    shown = tables(plan.best)
    options = option_rows(plan)
    total = len(finishing(plan.options))
    part = f", {len(options)} of {total}" if len(options) < total else ""
    shown[f"options{part} (*: none is faster and cheaper)"] = options
    for title, rows in shown.items():
        if rows:
            print()
            _print_table(title.capitalize(), rows)
    print(f"\n{snippet(plan)}")
    for line in refused(plan):
        print(f"not recommended: {line}")
    for note in [endless(plan), *plan.notes]:
        if note:
            print(f"note: {note}")


def _print_table(title: str, rows: Sequence[Row]) -> None:
    table = Table(title=title, box=None, pad_edge=False, title_justify="left")
    for name in rows[0]:
        table.add_column(name, justify="right" if name in NUMBERS else "left")
    for row in rows:
        cells = [str(value) for value in row.values()]
        table.add_row(*cells)
    # Of a narrower terminal the lines wrap, which is easier to read than cells of three letters.
    width = max(100, Console().width)
    Console(width=width).print(table)
