"""The plot of a plan: time against cost of its options."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from markupsafe import Markup
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from cluster.options import Asked, Option, front
from cluster.page import DEMAND, OTHER, SPOT, STYLE, TEXT, inline_svg
from cluster.plan_text import Plan
from cluster.prices import load_prices
from cluster.published import EPOCHS, FINE_TUNING, MODEL, WINDOWS

HEIGHT = 11.0  # points from one name to the next


class Published(NamedTuple):
    """The published run of the same job."""

    name: str
    hours: float
    dollars: float


def published_run(option: Option) -> Published | None:
    """Return the published run on 64 GPUs if the option trains the same recipe."""
    run = FINE_TUNING[-1]
    recipe = MODEL, run.batch, math.ceil(WINDOWS * EPOCHS / run.batch)
    found = option.found
    if found is None:
        return None
    hparams = found.hparams
    if (getattr(hparams, "model", ""), hparams.global_batch_size, found.job.steps) != recipe:
        return None
    price = load_prices()[run.instance]
    machines = price.machines(run.slots)
    name = f"{machines} x {run.instance} ({run.slots} V100)"
    return Published(name, run.hours, machines * run.hours * price.hourly(run.spot))


@style.context(STYLE)
def draw(plan: Plan, published: Published | None) -> Markup:
    """Return expected hours against dollars as inline SVG; ranges of the front are bars."""
    axes = Figure(figsize=(6.6, 4.3)).subplots()
    axes.set(xscale="log", yscale="log", xlabel="expected hours", ylabel="expected dollars")
    best = list(front(plan.options))
    fine = [o for o in plan.options if not o.why_not and o.cases and math.isfinite(_at(o)[1])]
    named = unique([*best, plan.best, *(o for o in fine if o is plan.own)])
    for option in sorted(fine, key=lambda o: o in named):
        _mark(axes, option, option in named)
    axes.plot(*zip(*map(_at, best), strict=True), "-", color=TEXT, lw=0.8, zorder=2)
    axes.plot(*_at(plan.best), "o", mfc="none", color=TEXT, ms=13, mew=1.4, zorder=4)
    if published is not None:
        axes.plot(published.hours, published.dollars, "*", color=TEXT, ms=10, zorder=4)
    _limits(axes, plan.asked)
    _scale(axes)
    _name(axes, named, plan)
    label = f"Expected hours against dollars of {len(fine)} options; the table has the numbers"
    return Markup(inline_svg(axes.figure, label))


def unique(options: Sequence[Option]) -> list[Option]:
    """Return the options without those that came before."""
    return list({id(option): option for option in options}.values())


def _at(option: Option) -> tuple[float, float]:
    return option.cases[1]["hours"], option.cases[1]["cost"]


def _mark(axes: Axes, option: Option, named: bool) -> None:
    """Draw an option: circles are spot, squares on demand; with bars and in colour if `named`."""
    shape, colour = ("o", SPOT) if option.spot else ("s", DEMAND)
    hours, dollars = _at(option)
    if not named:
        axes.plot(hours, dollars, shape, color=OTHER, ms=3.5, zorder=1)
        return
    bar: dict[str, Any] = {"color": colour, "lw": 2.5, "alpha": 0.35, "solid_capstyle": "butt"}
    for what, drawn in (("hours", lambda ends: (ends, [dollars] * 2)),
                        ("cost", lambda ends: ([hours] * 2, ends))):  # fmt: skip
        low, middle, high = option.figures(what)
        ends = [low, high if math.isfinite(high) else 1e3 * middle]
        axes.plot(*drawn(ends), zorder=2, **bar)
    axes.plot(hours, dollars, shape, color=colour, ms=6, zorder=3)


def _limits(axes: Axes, asked: Asked) -> None:
    """Draw the deadline and the budget, if they were given."""
    look: dict[str, Any] = {"color": TEXT, "ls": ":", "lw": 1.2}
    if asked.deadline is not None:
        axes.axvline(asked.deadline, **look)
        axes.annotate(" deadline", (asked.deadline, 0.97), xycoords=("data", "axes fraction"))
    if asked.budget is not None:
        axes.axhline(asked.budget, **look)
        axes.annotate("budget", (0.99, asked.budget), (0, 3), ("axes fraction", "data"),
                      "offset points", ha="right")  # fmt: skip


def _scale(axes: Axes) -> None:
    """Set ticks at 1, 2 and 5 times a power of ten, or at the powers where those are too many."""
    for axis, (low, high) in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
        subs = (1, 2, 5) if high / low < 1e3 else (1,)
        axis.set_major_locator(LogLocator(subs=subs))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(lambda value, _: f"{value:,g}")


def _name(axes: Axes, named: Sequence[Option], plan: Plan) -> None:
    """Write names and slots below and left of the points, where no option lies, without overlap."""
    figure = axes.figure
    figure.draw_without_rendering()  # for the scale
    scale, below = 72 / figure.dpi, math.inf
    for option in sorted(named, key=lambda option: -option.cases[1]["cost"]):
        height = float(axes.transData.transform(_at(option))[1]) * scale
        below = min(height - 4, below - HEIGHT)
        axes.annotate(
            f"{option.machines} x {option.price.instance} ({option.slots})",
            _at(option), (-7, below - height), textcoords="offset points", ha="right", va="center",
            color=SPOT if option.spot else DEMAND, fontsize=8, zorder=5,
            fontweight="bold" if option is plan.best else "normal",
            arrowprops={"arrowstyle": "-", "lw": 0.5, "color": OTHER, "shrinkA": 0, "shrinkB": 2},
        )  # fmt: skip
