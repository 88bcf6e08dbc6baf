"""The plot of a plan: time against cost of its options."""

import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from cluster.planning.choice import finishing, front
from cluster.planning.options import Option
from cluster.planning.plan_text import Plan

STYLE = Path(__file__).with_name("page.mplstyle")
# Colours of a figure, which become those of the page (page.css), light or dark.
TEXT, LINE, OTHER, SPOT, DEMAND = "#000000", "#d9d9d9", "#9aa1a9", "#0b5cad", "#b34700"
_COLOURS = {
    TEXT: "currentColor", LINE: "var(--line)", OTHER: "var(--other)", SPOT: "var(--spot)",
    DEMAND: "var(--demand)", "#ffffff": "var(--page)",
}  # fmt: skip
LABEL = "Expected hours against dollars of all options; the table below has the numbers"
MOST = 30  # times the longest mean or the highest cost: ranges beyond leave the plot


@style.context(STYLE)
def plot_options(
    plan: Plan, named: Sequence[Option], published: tuple[float, float] | None
) -> Markup:
    """Return expected hours against dollars as inline SVG.

    Args:
        named: options that get their name, slots and ranges; those of the front are joined.
        published: hours and dollars of the published run.
    """
    figure = Figure(figsize=(6.2, 4.2))
    axes = figure.subplots()
    axes.set(xscale="log", yscale="log", xlabel="expected hours", ylabel="expected dollars")
    best = list(front(plan.options))
    for option in finishing(plan.options):
        large = option in [*best, *named]
        colour, shape = _colour(option) if large else OTHER, "o" if option.pool.spot else "s"
        axes.plot(*_at(option), shape, color=colour, ms=6 if large else 3, zorder=2 + large)
    axes.plot(*zip(*map(_at, best), strict=True), "-", color=TEXT, lw=0.8, zorder=2)
    axes.plot(*_at(plan.best), "o", mfc="none", color=TEXT, ms=13, mew=1.4, zorder=4)
    for x, y in [published] if published else []:
        axes.plot(x, y, "*", color=TEXT, ms=10, zorder=4)
    look: Any = {"color": TEXT, "ls": ":", "lw": 1.2}
    for what, limit in plan.asked.limits.items():
        (axes.axvline if what == "hours" else axes.axhline)(limit, **look)
    for index, (what, axis) in enumerate((("hours", axes.xaxis), ("cost", axes.yaxis))):
        stars = [(published[index],) * 3] if published else []
        _scale(axis, [*(option.figures(what) for option in named), *stars])
    _name(axes, named, plan.best)
    return _inline_svg(figure)


def _at(option: Option) -> tuple[float, float]:
    return option.mean("hours"), option.mean("cost")


def _colour(option: Option) -> str:
    return SPOT if option.pool.spot else DEMAND


def _scale(axis: Any, figures: Sequence[tuple[float, float, float]]) -> None:
    """Show low, middle and high figures on a log axis."""
    lows, middles, highs = zip(*figures, strict=True)
    low, high = min(lows) / 1.3, min(max(highs), MOST * max(middles)) * 1.3
    axis.axes.set(**{f"{axis.axis_name}lim": (low, high)})
    axis.set_major_locator(LogLocator(subs=(1,) if high / low > 1e3 else (1, 2, 5)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(lambda value, _: f"{value:,g}")


def _name(axes: Axes, named: Sequence[Option], best: Option) -> None:
    """Draw the ranges of options, and names and slots beside the plot, the dearest on top."""
    for number, option in enumerate(sorted(named, key=lambda each: each.mean("cost"))):
        (hours, dollars), colour = _at(option), _colour(option)
        for draw, at, what in ((axes.hlines, dollars, "hours"), (axes.vlines, hours, "cost")):
            low, middle, high = option.figures(what)
            end = min(high, 1e3 * middle)  # one without an end leaves the plot
            draw(at, low, end, color=colour, lw=2.5, alpha=0.35)
        axes.annotate(
            f"{option.name} ({option.slots})", (hours, dollars),
            (1.03, (number + 0.5) / len(named)), textcoords="axes fraction", va="center",
            color=colour, fontsize=8, fontweight="bold" if option is best else "normal",
            arrowprops={"arrowstyle": "-", "lw": 0.5, "color": OTHER, "relpos": (0, 0.5)},
            gid=f"name{number}",
        )  # fmt: skip


def _inline_svg(figure: Figure) -> Markup:
    """Return a figure as SVG in the page's colours, its text as text."""
    text = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(text, format="svg", metadata=nothing)
    svg = text.getvalue()
    svg = re.sub(r' xmlns(:xlink)?="[^"]*"', "", svg[svg.index("<svg") :])  # HTML knows them
    svg = svg.replace("xlink:href", "href")
    for colour, name in _COLOURS.items():
        svg = svg.replace(colour, name)
    return Markup(svg.replace("<svg", f'<svg role="img" aria-label="{LABEL}"', 1))
