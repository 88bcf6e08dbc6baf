"""A plan as one HTML page: the answer, one plot, the options, and what they rest on."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cluster.facts.prices import load_prices
from cluster.facts.published import EPOCHS, FINE_TUNING, MODEL, WINDOWS
from cluster.planning import plan_text
from cluster.planning.choice import finishing
from cluster.planning.options import Option
from cluster.planning.page import fill_template
from cluster.planning.plan_plot import plot_options
from cluster.planning.plan_text import Plan, open_options, spread_front
from detalbert.atomic import whole_file, writing


def published_run(option: Option) -> tuple[str, float, float] | None:
    """Return name, hours and dollars of the published run on 64 GPUs if the option trains the same
    recipe.
    """
    if option.estimate is None:
        return None
    run, hparams = FINE_TUNING[-1], option.estimate.hparams
    recipe = MODEL, run.batch, math.ceil(WINDOWS * EPOCHS / run.batch)
    if (hparams.model, hparams.global_batch_size, option.estimate.job.steps) != recipe:
        return None
    price = load_prices()[run.instance]
    machines = price.machines(run.slots)
    name = f"{machines} x {run.instance} ({run.slots} V100)"
    return name, run.hours, machines * run.hours * price.hourly(run.spot)


def write_page(plan: Plan, path: Path) -> None:
    """Write the page atomically. Raises UserError if it cannot be written."""
    best, named, run = plan.best, open_options(plan), published_run(plan.best)
    own = [o for o in named if o is plan.own]
    fine = sorted(plan.options, key=lambda option: option.mean("cost"))
    others = [o for o in fine if not o.why_not and o not in named]
    drawn = list(dict.fromkeys([*spread_front(plan.options), best, *own]))
    text = fill_template(
        Path(__file__).with_name("plan_page.html.j2"),
        plan=plan,
        text=plan_text,
        plot=plot_options(plan, drawn, run and run[1:]),
        published=run and run[0],
        reasons=list(_reasons(plan, run)),
        rows=[_row(option, plan) for option in named],
        others=[_row(option, plan) for option in others],
        taken=named.index(best),
    )
    with writing(path, "give --html another file"), whole_file(path) as file:
        file.write(text)


def _row(option: Option, plan: Plan) -> dict[str, Any]:
    """Return the cells of an option; its ranges are in the plot."""
    hours, cost = option.mean("hours"), option.mean("cost")
    beside = "as it stands: " * (option is plan.own)
    beside += f"{hours / plan.best.mean('hours'):,.2g} x time"
    if plan.best.mean("cost"):
        beside += f", {cost / plan.best.mean('cost'):,.2g} x cost"
    return {
        "option": option.name,
        "slots": option.slots,
        "hours": f"{hours:,.2f}" if math.isfinite(hours) else "never",
        "dollars": f"${cost:,.2f}" if option.price and math.isfinite(cost) else "-",
        "beside the recommended": "recommended" if option is plan.best else beside,
        "speed": plan_text.speed_source(option),
        "pool": option.pool.name,
    }


def _reasons(plan: Plan, run: tuple[str, float, float] | None) -> Iterator[str]:
    """Yield why the recommended option and not the cheapest, the fastest or the config's own."""
    best, fine = plan.best, finishing(plan.options)
    yield f"{best.name}: {plan.choice.why}."
    yield from plan_text.against(plan)
    fastest = min(fine, key=lambda option: option.mean("hours"))
    steady = next((option for option in fine if not option.pool.spot), best)
    if best.pool.spot and steady is not best and steady is not fastest:
        yield f"The cheapest on demand, which EC2 does not reclaim, is {plan_text.outcome(steady)}."
    if plan.own is not None and plan.own is not best:
        yield f"As it stands the config takes {plan_text.outcome(plan.own)}."
    if run is not None:
        name, hours, dollars = run
        yield f"Published: {name}, {hours:,.2f} h, ${dollars:,.2f} at today's price."
