"""The plot of a plan: time against cost of its options."""

import io
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from markupsafe import Markup, escape
from matplotlib import rc_context, style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from cluster.options import Asked, Option, front
from cluster.plan_text import Plan
from cluster.prices import load_prices
from cluster.published import EPOCHS, FINE_TUNING, MODEL, WINDOWS

STYLE = Path(__file__).with_name("page.mplstyle")
# Colours of a figure, which become those of the page (page.css), light or dark.
TEXT, LINE, PAGE = "#000000", "#d9d9d9", "#ffffff"
OTHER, SPOT, DEMAND = "#9aa1a9", "#0b5cad", "#b34700"
_COLOURS = {
    TEXT: "currentColor", LINE: "var(--line)", OTHER: "var(--other)", SPOT: "var(--spot)",
    DEMAND: "var(--demand)", PAGE: "var(--page)",
}  # fmt: skip
HEIGHT, LETTER = 11.0, 5.0  # points from one name to the next, and of a letter
WIDTH = 330.0  # of the axes, about


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
def plot_options(plan: Plan, named: Sequence[Option], published: Published | None) -> Markup:
    """Return expected hours against dollars as inline SVG.

    Args:
        named: options that get their name, slots and ranges; those of the front are joined.
    """
    figure = Figure(figsize=(5.2, 4.2))
    axes = figure.subplots()
    axes.set(xscale="log", yscale="log", xlabel="expected hours", ylabel="expected dollars")
    best = list(front(plan.options))
    for option in plan.options:
        if not option.why_not and math.isfinite(option.mean("cost")):
            _mark(axes, option, option in [*best, *named])
    for option in named:
        _ranges(axes, option)
    axes.plot(*zip(*map(_at, best), strict=True), "-", color=TEXT, lw=0.8, zorder=2)
    axes.plot(*_at(plan.best), "o", mfc="none", color=TEXT, ms=13, mew=1.4, zorder=4)
    if published is not None:
        axes.plot(published.hours, published.dollars, "*", color=TEXT, ms=10, zorder=4)
    _asked(axes, plan.asked)
    _scale(axes, named, published)
    figure.draw_without_rendering()  # the scale that names need
    _name(axes, named, plan, published)
    label = "Expected hours against dollars of all options; the table below has the numbers"
    return _inline_svg(figure, label)


def _inline_svg(figure: Figure, label: str) -> Markup:
    """Return a figure drawn in STYLE as SVG in the page's colours, read as `label`."""
    text = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with rc_context({"svg.fonttype": "none"}):  # text stays text
        figure.savefig(text, format="svg", metadata=nothing)
    svg = text.getvalue()
    svg = re.sub(r' xmlns(:xlink)?="[^"]*"', "", svg[svg.index("<svg") :])  # HTML knows them
    svg = svg.replace("xlink:href", "href")
    for colour, name in _COLOURS.items():
        svg = svg.replace(colour, name)
    return Markup(svg.replace("<svg", f'<svg role="img" aria-label="{escape(label)}"', 1))


def _at(option: Option) -> tuple[float, float]:
    return option.mean("hours"), option.mean("cost")


def _words(option: Option) -> str:
    return f"{option.machines} x {option.price.instance} ({option.slots})"


def _mark(axes: Axes, option: Option, named: bool) -> None:
    """Draw an option: circles are spot, squares on demand; grey unless `named`."""
    colour = SPOT if option.pool.spot else DEMAND
    look: Any = {"color": colour, "ms": 6, "zorder": 3} if named else {"color": OTHER, "ms": 3}
    axes.plot(*_at(option), "o" if option.pool.spot else "s", **look)


def _ranges(axes: Axes, option: Option) -> None:
    """Draw low to high hours and dollars as bars; one without an end leaves the plot."""
    look: Any = {"color": SPOT if option.pool.spot else DEMAND, "lw": 2.5, "alpha": 0.35}
    hours, dollars = _at(option)
    low, _, high = option.figures("hours")
    axes.hlines(dollars, low, min(high, 1e3 * hours), **look)
    low, _, high = option.figures("cost")
    axes.vlines(hours, low, min(high, 1e3 * dollars), **look)


def _asked(axes: Axes, asked: Asked) -> None:
    """Draw the deadline and the budget, if they were given."""
    look: dict[str, Any] = {"color": TEXT, "ls": ":", "lw": 1.2}
    words: dict[str, Any] = {"clip_on": True, "va": "bottom"}
    if asked.deadline is not None:
        axes.axvline(asked.deadline, **look)
        where = axes.get_xaxis_transform()
        axes.text(asked.deadline, 0.02, " deadline", transform=where, **words)
    if asked.budget is not None:
        axes.axhline(asked.budget, **look)
        where = axes.get_yaxis_transform()
        axes.text(0.99, asked.budget, "budget", transform=where, ha="right", **words)


def _scale(axes: Axes, named: Sequence[Option], published: Published | None) -> None:
    """Show the named options and their ranges, with room for names at the left, on log axes."""
    left = LETTER * max(len(_words(option)) for option in named) + 10
    ends = [option.figures(what) for what in ("hours", "cost") for option in named]
    for axis, mine, other in (
        (axes.xaxis, ends[: len(named)], published and published.hours),
        (axes.yaxis, ends[len(named) :], published and published.dollars),
    ):
        middle = max(figures[1] for figures in mine)
        low = min(min(figures[0] for figures in mine), other or math.inf)
        high = max(min(max(figures[2] for figures in mine), 30 * middle), other or 0.0)
        room = (high / low) ** (left / (WIDTH - left) if axis is axes.xaxis else 0.0)
        axis.axes.set(**{f"{axis.axis_name}lim": (low / room / 1.3, high * 1.3)})
        few, many = high / low < 4, high / low > 1e3
        ticks = MaxNLocator(4) if few else LogLocator(subs=(1,) if many else (1, 2, 5))
        axis.set_major_locator(ticks)
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(lambda value, _: f"{value:,g}")


def _name(axes: Axes, named: Sequence[Option], plan: Plan, published: Published | None) -> None:
    """Write names and slots: those of the front below and left of it, where no option lies, one
    below the other; the others right of their points.
    """

    def place(at: tuple[float, float]) -> Any:
        return axes.transData.transform(at) * 72 / axes.figure.dpi

    star = place((published.hours, published.dollars)) if published else (math.inf, math.inf)
    best, bottom = list(front(plan.options)), axes.bbox.y0 * 72 / axes.figure.dpi + 6
    left, below = sum(option in best for option in named), math.inf
    for number, option in enumerate(sorted(named, key=lambda option: -option.mean("cost"))):
        name = _words(option)
        right, height = place(_at(option))
        side, move = "left", (10.0, 0.0)
        if option in best:
            below = min(height - 4, below - HEIGHT)
            if abs(below - star[1]) < HEIGHT and 0 < right - star[0] < LETTER * len(name):
                below = star[1] - HEIGHT
            left -= 1
            below = max(below, bottom + HEIGHT * left)
            side, move = "right", (-7.0, below - height)
        axes.annotate(
            name, _at(option), move, textcoords="offset points", ha=side, va="center",
            color=SPOT if option.pool.spot else DEMAND, fontsize=8, zorder=5,
            fontweight="bold" if option is plan.best else "normal", gid=f"name{number}",
            arrowprops={"arrowstyle": "-", "lw": 0.5, "color": OTHER, "shrinkA": 0, "shrinkB": 2},
        )  # fmt: skip
