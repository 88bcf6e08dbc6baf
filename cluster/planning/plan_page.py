"""A plan as one HTML page: the answer, one plot, the options, and what they rest on.

The page needs no network and no other file: it can be sent to whoever decides. Its texts are those
of the terminal (plan_text.py); it adds the plot, and the options that the terminal leaves out.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from cluster.facts.prices import load_prices
from cluster.facts.published import EPOCHS, FINE_TUNING, MODEL, WINDOWS
from cluster.planning import plan_text
from cluster.planning.choice import finishing
from cluster.planning.options import Option
from cluster.planning.plan_plot import plot_options
from cluster.planning.plan_tables import NUMBERS, tables
from cluster.planning.plan_text import Plan, open_options, spread_front
from detalbert.files import whole_file, writing
from detalbert.pages.template import fill_template


class PublishedRun(NamedTuple):
    """The published run of a recipe, at today's price."""

    name: str
    hours: float
    dollars: float


def published_run(option: Option) -> PublishedRun | None:
    """Return the published run on 64 GPUs if the option trains the same recipe."""
    if option.estimate is None:
        return None
    # Its number of steps is not published: it follows from windows, epochs and batch.
    run = FINE_TUNING[-1]
    job = option.estimate.job
    steps = math.ceil(WINDOWS * EPOCHS / run.batch)
    same_model = job.hparams.model == MODEL
    same_batch = job.hparams.global_batch_size == run.batch
    same_steps = job.steps == steps
    if not (same_model and same_batch and same_steps):
        return None
    price = load_prices()[run.instance]
    machines = price.machines(run.slots)
    return PublishedRun(
        name=f"{machines} x {run.instance} ({run.slots} V100)",
        hours=run.hours,
        dollars=machines * run.hours * price.hourly(run.spot),
    )


def write_page(plan: Plan, path: Path) -> None:
    """Write the page atomically. Raises UserError if it cannot be written."""
    shown = open_options(plan)
    published = published_run(plan.best)

    # A machine of one's own without a price has no place among dollars.
    plot = ""
    if plan.best.price:
        own = [option for option in shown if option is plan.own and option.price]
        named = dict.fromkeys([*spread_front(plan.options), plan.best, *own])  # each once
        plot = plot_options(plan, list(named), published)

    # What can run and is not in the open table is in one that is closed at first.
    folded = []
    for option in sorted(plan.options, key=lambda option: option.mean("cost")):
        if not option.why_not and option not in shown:
            folded.append(option)
    text = fill_template(
        Path(__file__).with_name("plan_page.html.j2"),
        plan=plan,
        text=plan_text,
        tables=tables(plan.best),
        numbers=NUMBERS,
        plot=plot,
        published=published,
        reasons=list(_reasons(plan, published)),
        rows=[_row(option, plan) for option in shown],
        others=[_row(option, plan) for option in folded],
        taken=shown.index(plan.best),
    )
    with writing(path, cure="give --html another file"), whole_file(path) as file:
        file.write(text)


def _row(option: Option, plan: Plan) -> dict[str, object]:
    """Return the cells of an option; its ranges are in the plot."""
    hours = option.mean("hours")
    cost = option.mean("cost")
    priced = option.price is not None and math.isfinite(cost)
    return {
        "option": option.name,
        "slots": option.slots,
        "hours": f"{hours:,.2f}" if math.isfinite(hours) else "never",
        "dollars": f"${cost:,.2f}" if priced else "-",
        "beside the recommended": _beside(option, plan),
        "speed": plan_text.speed_source(option),
        "pool": "" if plan_text.is_any(option.pool) else option.pool.name,
    }


def _beside(option: Option, plan: Plan) -> str:
    """Return how many times the recommended option's time and cost an option takes."""
    best = plan.best
    if option is best:
        return "recommended"
    text = "as it stands: " if option is plan.own else ""
    slower = option.mean("hours") / best.mean("hours")
    text += f"{slower:,.2g} x time"
    if best.price and option.price:
        dearer = option.mean("cost") / best.mean("cost")
        text += f", {dearer:,.2g} x cost"
    return text


def _reasons(plan: Plan, published: PublishedRun | None) -> Iterator[str]:
    """Yield why the recommended option and not the cheapest, the fastest or the config's own."""
    best = plan.best
    candidates = finishing(plan.options)  # the cheapest first
    yield f"{best.name}: {plan.choice.why}."
    yield from plan_text.against(plan)
    fastest = min(candidates, key=lambda option: option.mean("hours"))
    steady = next((option for option in candidates if not option.pool.spot), best)
    if best.pool.spot and steady is not best and steady is not fastest:
        yield f"The cheapest on demand, which EC2 does not reclaim, is {plan_text.outcome(steady)}."
    if plan.own is not None and plan.own is not best:
        yield f"As it stands the config takes {plan_text.outcome(plan.own)}."
    if published is not None:
        figures = f"{published.hours:,.2f} h, ${published.dollars:,.2f} at today's price"
        yield f"Published: {published.name}, {figures}."
