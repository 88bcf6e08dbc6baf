"""A plan in words and tables: on a terminal, and as JSON."""

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from rich.console import Console
from rich.table import Table

from cluster.estimates import layouts
from cluster.estimates.estimate import Estimate
from cluster.planning.options import Asked, Option, finishing, front
from detalbert.engine.memory import HEAD_CHUNK, OVERHEAD

GIB = 2**30
ROWS = 10  # of a table of options or layouts
NAMED = 8  # options of the front that are named


class Plan(NamedTuple):
    """The options for a run, and the one to take."""

    title: str
    options: Sequence[Option]
    best: Option
    why: str  # it is recommended
    own: Option | None  # the config as it stands
    kept: bool  # deadline and budget are kept
    notes: Sequence[str]
    asked: Asked


NUMBERS = "slots,hours,dollars,figure,machines,$/h,95 % within,reclaims,waiting h,$".split(",")
BILL = {name: name for name in ("$/h", "hours", "95 % within", "reclaims", "waiting h", "$")}
BILL |= {"95 % within": "hours 95 %", "$": "cost"}  # of a case
Row = dict[str, Any]


def figure(what: str, figure: str, source: str = "modelled", how: str = "") -> Row:
    """Return a row with a figure, its source and how it was computed."""
    return {"what": what, "figure": figure, "source": source, "how": how}


def span(figures: Sequence[float], form: str, unit: str = "") -> str:
    """Return a figure with its range: "0.75 h (0.44 to 17.70)"."""
    low, middle, high = (form.format(value) for value in figures)
    return middle + unit if low == high else f"{middle}{unit} ({low} to {high})"


def hours(option: Option) -> str:
    """Return an option's hours, with their range."""
    figures = option.figures("hours")
    return span(figures, "{:,.1f}" if figures[1] >= 10 else "{:,.2f}", " h")


def dollars(option: Option) -> str:
    """Return an option's cost, with its range."""
    figures = option.figures("cost")
    return span(figures, "${:,.0f}" if figures[1] >= 100 else "${:,.2f}")


def place(option: Option) -> str:
    """Return an option's machines and slots."""
    return f"{option.name} ({option.slots} slot{'s' * (option.slots > 1)})"


def recommendation(plan: Plan) -> str:
    """Return what to take, how long it takes, how much it costs, and why."""
    best = plan.best
    return f"Take {place(best)}: {hours(best)}, {dollars(best)}: {plan.why}."


def outcome(option: Option) -> str:
    """Return an option with its hours and cost, or why the run cannot take it."""
    if option.why_not:
        return f"{place(option)}, which cannot run: {option.why_not}"
    return f"{place(option)}: {hours(option)}, {dollars(option)}"


def tables(option: Option) -> dict[str, list[Row]]:
    """Return the tables behind an option; an empty one where nothing is known or to choose."""
    found = option.found
    return {
        "memory": memory_rows(found) if found else [],
        "time": time_rows(found) if found else [],
        "bill": bill_rows(option),
        "layouts": layout_rows(found) if found else [],
    }


def memory_rows(found: Estimate) -> list[Row]:
    """Return the memory of a GPU by part, and the largest forward pass that fits."""
    memory, length, sold = found.memory, found.hparams.max_seq_length, found.gpu.gigabytes
    activations = f"{found.tokens:,} tokens of {memory.per_token / 1e6:.3f} MB"
    rows = [
        ("states", memory.states, "weights, gradients, two moments"),
        ("gathered", memory.gathered, "embeddings, head, one layer and the next"),
        ("activations", found.tokens * memory.per_token, activations),
        ("logits", memory.head, f"of {HEAD_CHUNK:,} tokens at a time"),
        ("overhead", OVERHEAD, "CUDA, NCCL, fragmentation"),
        ("of a GPU", found.needed, f"of {sold} GB, {found.needed / GIB / sold:.0%}"),
    ]
    how = f"{found.most // length} windows of {length:,}"
    largest = figure("largest forward", f"{max(0, found.most):,} tokens", how=how)
    return [figure(what, _gib(size), how=how) for what, size, how in rows if size] + [largest]


def time_rows(found: Estimate) -> list[Row]:
    """Return the time by part, and what a step and a machine's end take."""
    rows = [figure(p.name, f"{p.seconds / 3600:,.2f} h", p.source, p.how) for p in found.parts()]
    rate, each = found.rate, found.hparams.global_batch_size / found.step
    speed = [found.step_tokens / found.step * at / rate.tokens for at in rate[:3]]
    how = f"{each:,.1f} windows/s, {found.forwards} forward(s) a slot and step"
    rows.append(figure("tokens/s", span(speed, "{:,.0f}"), rate.source, how))
    if found.machine and found.machines > 1:
        kind = "EFA" if found.efa else "one plain interface"
        how = f"{found.sent / 1e9:.1f} GB a machine by {kind}"
        rows.append(figure("network a step", f"{found.network(found.efa):.2f} s", how=how))
    step, disk, upload = found.leaving()
    how = f"of 120 s of notice: the step, {disk:.0f} s on disk, {upload:.0f} s of upload"
    return [*rows, figure("leaving with notice", f"{step + disk + upload:.0f} s", how=how)]


def bill_rows(option: Option) -> list[Row]:
    """Return the bill of the three cases of the spot market; the last column is its cost."""
    rows = []
    for case in option.cases:
        figures = {head: f"{case[name]:,.2f}" for head, name in BILL.items()}
        rows.append({"case": case["case"], "machines": option.machines, **figures})
    return rows


def layout_rows(found: Estimate) -> list[Row]:
    """Return a row for each of the fastest layouts; empty unless the model is sharded."""
    rows = []
    for each in layouts.ranked(found)[:ROWS] if found.layout else ():
        keys = layouts.layout_keys(each)
        row = {**keys["layout"], "checkpointing": keys["activation_checkpointing"]}
        row |= {"tokens a forward": each.tokens, "GiB": round(each.needed / GIB, 1)}
        row |= {"step s": round(each.step, 2), "tokens/s": round(each.step_tokens / each.step)}
        rows.append(row)
    return rows


def open_options(plan: Plan) -> list[Option]:
    """Return the options of the open table, the cheapest first: the recommended one, the config as
    it stands, the front without near neighbours, then the cheapest.
    """
    fine = finishing(plan.options)
    own = [option for option in fine if option is plan.own]
    chosen = dict.fromkeys([plan.best, *own, *spread_front(plan.options), *fine])
    return sorted([*chosen][:ROWS], key=fine.index)


def spread_front(options: Sequence[Option]) -> list[Option]:
    """Return at most NAMED options of the front; of near neighbours one stays."""
    best = list(front(options))
    while len(best) > NAMED:
        at = [math.log(option.mean("hours") / option.mean("cost")) for option in best]
        gaps = [at[n + 1] - at[n - 1] for n in range(1, len(best) - 1)]
        del best[1 + gaps.index(min(gaps))]
    return best


def option_rows(plan: Plan) -> list[Row]:
    """Return the rows of `open_options`; * marks those that none beats in both time and cost."""
    best = list(front(plan.options))
    return [
        {
            "option": ("* " if option in best else "") + option.name,
            "slots": option.slots,
            "hours": hours(option),
            "cost": dollars(option),
            "speed": option.rate.source if option.rate else "given",
        }
        for option in open_options(plan)
    ]


def snippet(plan: Plan) -> str:
    """Return the YAML keys of the recommended option."""
    best, keys = plan.best, dict(plan.best.keys)
    text = f"# {best.name}: {hours(best)}, {dollars(best)} at prices of {best.price.region}\n"
    if keys:
        text += yaml.safe_dump({"hyperparameters": keys}, sort_keys=False, default_flow_style=False)
    resources = {"slots_per_trial": best.slots, "resource_pool": best.pool.name}
    return text + yaml.safe_dump({"resources": resources}, sort_keys=False)


def refused(plan: Plan) -> list[str]:
    """Return a line for each option that cannot run, with the reason; equal reasons once."""
    reasons: dict[str, list[str]] = {}
    for option in plan.options:
        if option.why_not:
            reasons.setdefault(option.why_not, []).append(place(option))
    return [f"{', '.join(names)}: {why}" for why, names in reasons.items()]


def method() -> list[str]:
    """Return the rules of cluster/planning.md, without markup."""
    text = Path(__file__).parents[1].joinpath("planning.md").read_text(encoding="utf-8")
    text = text.split("## How a plan is made\n")[1].split("\n## ")[0]
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", re.sub(r"\*\*|`", "", text))
    return [" ".join(point.split()) for point in text.split("\n- ")[1:]]


def as_json(plan: Plan) -> dict[str, Any]:
    """Return all figures; null where one is infinite."""
    found = {
        "sentence": recommendation(plan),
        "recommended": _figures(plan.best),
        "own": plan.own and _figures(plan.own),
        "options": [_figures(option) for option in plan.options],
        **tables(plan.best),
        "yaml": snippet(plan),
        "notes": list(plan.notes),
        "method": method(),
    }
    return json.loads(json.dumps(found), parse_constant=lambda name: None)


def _figures(option: Option) -> Row:
    found: Row = {"machines": option.machines, "instance": option.price.instance}
    found |= {"spot": option.pool.spot, "slots": option.slots, "pool": option.pool.name}
    found |= {"why_not": option.why_not or None, "rate": option.rate and option.rate._asdict()}
    if option.cases:
        found |= {what: option.figures(what) for what in ("hours", "cost")}
        found |= {"cases": option.cases, "checkpoint_period": option.period}
        found["keys"] = dict(option.keys)
    return found


def print_plan(plan: Plan) -> None:
    """Print the sentence, the tables, the options, the YAML and the notes."""
    print(f"{plan.title}: {recommendation(plan)}")
    if plan.own is not None and plan.own is not plan.best:
        print(f"As it stands: {outcome(plan.own)}.")
    options = {"options (*: none is faster and cheaper)": option_rows(plan)}
    for title, rows in {**tables(plan.best), **options}.items():
        if rows:
            table = Table(title=title.capitalize(), box=None, pad_edge=False, title_justify="left")
            for name in rows[0]:
                table.add_column(name, justify="right" if name in NUMBERS else "left")
            for row in rows:
                table.add_row(*map(str, row.values()))
            print()
            Console(width=max(100, Console().width)).print(table)
    print(f"\n{snippet(plan)}")
    for each in refused(plan):
        print(f"cannot run: {each}")
    for note in plan.notes:
        print(f"note: {note}")


def _gib(value: float) -> str:
    return f"{value / GIB:.1f} GiB" if math.isfinite(value) else "none"
