"""A plan in words and tables: on a terminal, and as JSON.

The page, the terminal and the JSON share one set of rows, whose cells are texts: what one form
shows, the others say in the same words. Numbers to compute with are in the options of the JSON.
"""

import json
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from rich.console import Console
from rich.table import Table

from cluster.configs.masterconf import Pool
from cluster.estimates.estimate import Estimate, ranked_layouts
from cluster.estimates.times import time_parts
from cluster.planning.choice import Recommendation, finishing, front, reasons_against
from cluster.planning.options import Option, Request, layout_keys
from detalbert.engine.memory import HEAD_CHUNK, OVERHEAD

GIB = 2**30
ROWS = 10  # of the table of options
LAYOUTS = 3  # that are shown
RANGES = "In parentheses: nine of ten runs, over three cases of the spot market and the speed."
NAMED = 8  # options of the front that are named
NUMBERS = (
    "slots",
    "hours",
    "dollars",
    "figure",
    "machines",
    "$/h",
    "95 % within",
    "reclaims",
    "waiting h",
    "$",
)
# Columns of a bill: the figures of a case.
BILL = {
    "hours": "hours",
    "95 % within": "hours 95 %",
    "reclaims": "reclaims",
    "waiting h": "waiting h",
    "$": "cost",
}
Row = dict[str, Any]


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


def figure(name: str, value: str, source: str = "modelled", how: str = "") -> Row:
    """Return a row with a figure, its source and how it was computed."""
    return {"what": name, "figure": value, "source": source, "how": how}


def span(figures: Sequence[float], form: str, unit: str = "") -> str:
    """Return a figure with its range: "0.75 h (0.44 to 17.70)"."""
    texts = [form.format(value) if math.isfinite(value) else "no end" for value in figures]
    low, middle, high = texts
    if low == high:
        return f"{middle}{unit}"
    return f"{middle}{unit} ({low} to {high})"


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


def tables(option: Option) -> dict[str, list[Row]]:
    """Return the tables behind an option; an empty one where nothing is known or to choose."""
    estimate = option.estimate
    return {
        "memory": memory_rows(estimate) if estimate else [],
        "time": time_rows(estimate) if estimate else [],
        "bill": bill_rows(option),
        "layouts": layout_rows(estimate) if estimate else [],
    }


def memory_rows(estimate: Estimate) -> list[Row]:
    """Return the memory of a GPU by part, and the largest forward pass that fits."""
    memory = estimate.demand.memory
    sold = estimate.gpu.gigabytes
    length = estimate.hparams.max_seq_length
    tokens = estimate.tokens
    activations = f"{tokens:,} tokens of {memory.per_token / 1e6:.3f} MB"
    parts = [  # name, bytes, how they come about
        ("states", memory.states, "weights, gradients, two moments"),
        ("gathered", memory.gathered, "embeddings, head, one layer and the next"),
        ("activations", tokens * memory.per_token, activations),
        ("logits", memory.head, f"of {HEAD_CHUNK:,} tokens at a time"),
        ("overhead", OVERHEAD, "CUDA, NCCL, fragmentation"),
        ("of a GPU", estimate.needed, f"of {sold} GB, {estimate.needed / GIB / sold:.0%}"),
    ]
    rows = [figure(name, _gib(size), how=how) for name, size, how in parts if size]
    largest = figure(
        "largest forward",
        value=f"{max(0, estimate.max_tokens):,} tokens",
        how=f"{estimate.max_tokens // length} windows of {length:,}",
    )
    return [*rows, largest]


def time_rows(estimate: Estimate) -> list[Row]:
    """Return the time by part, and what a step and a machine's end take."""
    rows = [
        figure(part.name, f"{part.seconds / 3600:,.2f} h", source=part.source, how=part.how)
        for part in time_parts(estimate)
    ]
    return [*rows, *_rate_rows(estimate)]


def _rate_rows(estimate: Estimate) -> Iterator[Row]:
    """Yield the rows on speed, on traffic between machines and on the end of a spot machine."""
    rate = estimate.rate
    step = estimate.step
    checkpoint = estimate.checkpoint
    windows = estimate.hparams.global_batch_size / step.seconds
    # Tokens a second of all slots at the low, middle and high speed.
    middle = estimate.step_tokens / step.seconds
    tokens = [middle * speed / rate.tokens for speed in (rate.low, rate.tokens, rate.high)]
    yield figure(
        "tokens/s",
        value=span(tokens, form="{:,.0f}"),
        source=rate.source,
        how=f"{windows:,.1f} windows/s, {estimate.forwards} forward(s) a slot and step",
    )
    if estimate.machine and estimate.machines > 1:
        interface = "EFA" if step.has_efa else "one plain interface"
        yield figure(
            "network a step",
            value=f"{step.between:.2f} s",
            how=f"{step.sent / 1e9:.1f} GB a machine by {interface}",
        )
    yield figure(
        "leaving with notice",
        value=f"{estimate.seconds_after_notice:.0f} s",
        how=f"of 120 s of notice: the step, {checkpoint.disk:.0f} s on disk, "
        f"{checkpoint.upload:.0f} s of upload",
    )


def bill_rows(option: Option) -> list[Row]:
    """Return the bill of the three cases of the spot market; the last column is its cost."""
    rows = []
    for case in option.cases:
        row: Row = {
            "case": case.name,
            "machines": option.all_machines,
            "$/h": f"{case.hourly:,.2f}",
        }
        for column, name in BILL.items():
            row[column] = f"{case.figures[name]:,.2f}"
        rows.append(row)
    return rows


def layout_rows(estimate: Estimate) -> list[Row]:
    """Return a row for each of the fastest layouts; empty unless the model is sharded."""
    if not estimate.demand.layout:
        return []
    rows = []
    for layout in ranked_layouts(estimate)[:LAYOUTS]:
        keys = layout_keys(layout)
        rows.append(
            {
                **keys["layout"],
                "checkpointing": keys["activation_checkpointing"],
                "tokens a forward": layout.tokens,
                "GiB": round(layout.needed / GIB, 1),
                "step s": round(layout.step.seconds, 2),
                "tokens/s": round(layout.step_tokens / layout.step.seconds),
            }
        )
    return rows


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
    page = Path(__file__).parents[1].joinpath("planning.md").read_text(encoding="utf-8")
    _, _, section = page.partition("## How a plan is made\n")
    section, _, _ = section.partition("\n## ")
    section = re.sub(r"\*\*|`", "", section)  # bold and code
    section = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", section)  # links
    _, *points = section.split("\n- ")
    return [" ".join(point.split()) for point in points]


def as_json(plan: Plan) -> dict[str, Any]:
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
    shown["options (*: none is faster and cheaper)"] = option_rows(plan)
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


def _gib(value: float) -> str:
    return f"{value / GIB:.1f} GiB" if math.isfinite(value) else "none"
