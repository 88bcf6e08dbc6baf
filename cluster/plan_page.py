"""A plan as one HTML page: the answer, one plot, the options, and what they rest on."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cluster import plan_text
from cluster.options import SURE, Option
from cluster.plan_text import Plan, cost, open_options, spread_front, unique
from detalbert.atomic import whole_file, writing
from detalbert.errors import UserError

try:
    from cluster.page import fill_template
    from cluster.plan_plot import Published, plot_options, published_run
except ImportError as error:
    package = (error.name or "matplotlib").split(".")[0]
    cure = "pip install -r cluster/requirements.txt"
    raise UserError(f"--html: {package} is not installed; {cure}") from None

NUMERIC = "slots,hours,dollars,figure,machines,$/h,95 % within,reclaims,waiting h,$".split(",")


def write_page(plan: Plan, path: Path) -> None:
    """Write the page atomically. Raises UserError if it cannot be written."""
    best, named = plan.best, open_options(plan)
    own = [o for o in named if o is plan.own]
    others = [o for o in sorted(plan.options, key=cost) if not o.why_not and o not in named]
    run, (machines, market) = published_run(best), best.name.rsplit(", ", 1)
    text = fill_template(
        Path(__file__).with_name("plan_page.html.j2"),
        plan=plan,
        sentence=plan_text.recommendation(plan),
        figures=[
            ("Take", machines, f"{market}, slots: {best.slots}, pool: {best.pool.name}"),
            ("Hours", *_split(plan_text.hours(best))),
            ("Dollars", *_split(plan_text.dollars(best))),
        ],
        plot=plot_options(plan, unique([*spread_front(plan.options), best, *own]), run),
        published=run and run.name,
        reasons=list(_reasons(plan, run)),
        rows=[_row(option, plan) for option in named],
        others=[_row(option, plan) for option in others],
        taken=named.index(best),
        numbers=NUMERIC,
        refused=plan_text.refused(plan),
        yaml=plan_text.snippet(plan),
        tables=_tables(best),
        method=plan_text.method(),
    )
    with writing(path, "give --html another file"), whole_file(path) as file:
        file.write(text)


def _split(text: str) -> tuple[str, str]:
    """Return a figure and its range: "1.84 h (0.80 to 40.86)"."""
    figure, _, between = text.partition(" (")
    return figure, between.removesuffix(")")


def _row(option: Option, plan: Plan) -> dict[str, Any]:
    """Return the cells of an option; its ranges are in the plot."""
    best, figures = plan.best.cases[1], option.cases[1]
    slower, dearer = figures["hours"] / best["hours"], figures["cost"] / best["cost"]
    beside = f"{slower:,.2g} x time, {dearer:,.2g} x cost"
    if option is plan.own:
        beside = f"as it stands: {beside}"
    return {
        "option": option.name,
        "slots": option.slots,
        "hours": f"{figures['hours']:,.2f}" if math.isfinite(figures["hours"]) else "never",
        "dollars": f"${figures['cost']:,.2f}" if math.isfinite(figures["cost"]) else "-",
        "beside the recommended": "recommended" if option is plan.best else beside,
        "speed": option.rate.source if option.rate else "given",
        "pool": option.pool.name,
    }


def _reasons(plan: Plan, run: Published | None) -> Iterator[str]:
    """Yield why the recommended option and not the cheapest, the fastest or the config's own."""
    best, asked = plan.best, plan.asked
    fine = [o for o in plan.options if not o.why_not and math.isfinite(cost(o))]
    cheapest, fastest = min(fine, key=cost), min(fine, key=lambda o: o.cases[1]["hours"])
    yield f"{best.name}: {plan.why}."
    limits = (("hours", asked.deadline, "{:,.2f} h"), ("cost", asked.budget, "${:,.2f}"))
    for what, most, form in limits if cheapest is not best else ():
        if most is not None and (sure := cheapest.sure(what)) > most:
            takes = f"{SURE} % of its runs take up to {form.format(sure)}, not {form.format(most)}"
            yield f"The cheapest, {_said(cheapest)}, misses that: {takes}."
    if fastest is not best:
        yield f"The fastest is {_said(fastest)}."
    steady = min((o for o in fine if not o.spot), key=cost, default=best)
    if best.spot and steady is not best and steady is not fastest:
        yield f"The cheapest on demand, which EC2 does not reclaim, is {_said(steady)}."
    if plan.own is not None and plan.own is not best:
        yield f"As it stands the config takes {_said(plan.own)}."
    if run is not None:
        yield f"Published: {run.name}, {run.hours:,.2f} h, ${run.dollars:,.2f} at today's price."


def _said(option: Option) -> str:
    if option.why_not:
        return f"{plan_text.place(option)}, which cannot run: {option.why_not}"
    return f"{plan_text.place(option)}: {plan_text.hours(option)}, {plan_text.dollars(option)}"


def _tables(best: Option) -> list[tuple[str, list[dict[str, Any]]]]:
    """Return memory, time, bill and layouts of the recommended option."""
    return [
        ("Memory by part", [row._asdict() for row in plan_text.memory_rows(best)]),
        ("Time by part", [row._asdict() for row in plan_text.time_rows(best)]),
        ("Bill, three cases of the spot market", plan_text.bill_rows(best)),
        ("Layouts, the fastest first", plan_text.layout_rows(best)),
    ]
