"""The plot of a plan: time against cost of its options.

Both axes are logarithmic, as options differ by factors of ten in both. The SVG stands in the page
itself and takes the colours of its style sheet, light or dark; names stand beside the axes, where
none is over another.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from markupsafe import Markup
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from cluster.planning.choice import finishing, front
from cluster.planning.options import Option
from cluster.planning.plan_text import Plan
from detalbert.pages.svg import FIRST, OTHER, SECOND, STYLE, TEXT, inline_svg

SPOT = FIRST
DEMAND = SECOND
LABEL = "Expected hours against dollars of all options; the table below has the numbers"
MOST = 30  # times the longest mean or the highest cost: ranges beyond leave the plot


class Point(Protocol):
    """Hours and dollars of the published run."""

    @property
    def hours(self) -> float: ...

    @property
    def dollars(self) -> float: ...


@style.context(STYLE)
def plot_options(plan: Plan, named: Sequence[Option], published: Point | None) -> Markup:
    """Return expected hours against dollars as inline SVG.

    Args:
        named: options that get their name, slots and ranges; those of the front are joined.
        published: the published run.
    """
    figure = Figure(figsize=(6.2, 4.2))
    axes = figure.subplots()
    axes.set(xscale="log", yscale="log", xlabel="expected hours", ylabel="expected dollars")
    best = list(front(plan.options))
    for option in finishing(plan.options):
        if option.mean("cost"):
            _draw_point(axes, option, large=option in best or option in named)
    # A line along the front, and a ring around the recommended option.
    axes.plot(
        [option.mean("hours") for option in best],
        [option.mean("cost") for option in best],
        "-",
        color=TEXT,
        lw=0.8,
        zorder=2,
    )
    axes.plot(
        plan.best.mean("hours"),
        plan.best.mean("cost"),
        "o",
        mfc="none",
        color=TEXT,
        ms=13,
        mew=1.4,
        zorder=4,
    )
    if published is not None:
        axes.plot(published.hours, published.dollars, "*", color=TEXT, ms=10, zorder=4)
    for figure_name, limit in plan.request.limits.items():
        draw_line = axes.axvline if figure_name == "hours" else axes.axhline
        draw_line(limit, color=TEXT, ls=":", lw=1.2)

    # The axes show the ranges of what is named, not of all options.
    hours = [option.figures("hours") for option in named]
    dollars = [option.figures("cost") for option in named]
    if published is not None:
        hours.append((published.hours, published.hours, published.hours))
        dollars.append((published.dollars, published.dollars, published.dollars))
    _scale(axes.xaxis, hours)
    _scale(axes.yaxis, dollars)
    _label_options(axes, named, plan.best)
    return inline_svg(figure, LABEL)


def _draw_point(axes: Axes, option: Option, large: bool) -> None:
    axes.plot(
        option.mean("hours"),
        option.mean("cost"),
        "o" if option.pool.spot else "s",
        color=_colour(option) if large else OTHER,
        ms=6 if large else 3,
        zorder=3 if large else 2,
    )


def _colour(option: Option) -> str:
    return SPOT if option.pool.spot else DEMAND


def _scale(axis: Any, figures: Sequence[tuple[float, float, float]]) -> None:
    """Show low, middle and high figures on a log axis."""
    lows, middles, highs = zip(*figures, strict=True)
    # A third of free space on either side, so that no point lies on the frame.
    low = min(lows) / 1.3
    high = min(max(highs), MOST * max(middles)) * 1.3
    axis.axes.set(**{f"{axis.axis_name}lim": (low, high)})
    # Over more than three decades labels of 1, 2 and 5 would be over each other.
    ticks = (1,) if high / low > 1e3 else (1, 2, 5)
    axis.set_major_locator(LogLocator(subs=ticks))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(lambda value, _: f"{value:,g}")


def _label_options(axes: Axes, named: Sequence[Option], best: Option) -> None:
    """Draw the ranges of options, and names and slots beside the plot, the dearest on top."""
    by_cost = sorted(named, key=lambda option: option.mean("cost"))
    for number, option in enumerate(by_cost):
        hours = option.mean("hours")
        dollars = option.mean("cost")
        colour = _colour(option)
        low, middle, high = option.figures("hours")
        end = min(high, 1e3 * middle)  # one without an end leaves the plot
        axes.hlines(dollars, low, end, color=colour, lw=2.5, alpha=0.35)
        low, middle, high = option.figures("cost")
        end = min(high, 1e3 * middle)
        axes.vlines(hours, low, end, color=colour, lw=2.5, alpha=0.35)
        axes.annotate(
            f"{option.name.split(', ')[0]} ({option.slots})",
            xy=(hours, dollars),
            xytext=(1.03, (number + 0.5) / len(named)),
            textcoords="axes fraction",
            va="center",
            color=colour,
            fontsize=8,
            fontweight="bold" if option is best else "normal",
            arrowprops={"arrowstyle": "-", "lw": 0.5, "color": OTHER, "relpos": (0, 0.5)},
            gid=f"name{number}",
        )
