"""The plots, as SVG text: readable in black and white, the same bytes for the same numbers."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill

import numpy as np
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from reports.plan import Planned
from reports.run import Run
from reports.tables import Plot

STYLE = Path(__file__).with_name("page.mplstyle")
MARKERS = "osD^vP*X<>hdp"
HATCHES = ["", "///", "...", "xxx", "\\\\\\", "+++", "ooo", "---", "|||", "**"]
GREYS = ["0.25", "0.85", "0.55", "0.95", "0.4", "0.75", "0.65", "0.9"]
LINES = ["-", "--", ":", "-."]
BESIDE = {"frameon": False, "loc": "center left", "bbox_to_anchor": (1.0, 0.5), "fontsize": 7}


def _plot(name: str, axes: Axes, caption: str, x: str, y: str = "") -> Plot:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    if axes.get_legend_handles_labels()[1]:
        axes.legend(**BESIDE)  # over the lines and bars it would hide some
    text = io.StringIO()
    axes.figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    svg = text.getvalue()
    return Plot(name, svg[svg.index("<svg") :], caption)


def _log(axes: Axes, name: str) -> None:
    """Ticks at 1, 2 and 5 times a power of ten, as plain numbers."""
    axes.set(**{f"{name}scale": "log"})
    axis = getattr(axes, f"{name}axis")
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(lambda value, _: f"{value:g}")


@style.context(STYLE)
def cost_plot(runs: Sequence[Run]) -> Plot:
    """Bars of dollars, hatched by what they paid for; whiskers from the lowest to the highest."""
    runs = [run for run in runs if run.cost is not None]
    names = list(dict.fromkeys(part for run in runs for part in run.parts))
    axes = Figure(figsize=(8.6, max(0.9 + 0.5 * len(runs), 0.2 * len(names)))).subplots()
    left, rows = np.zeros(len(runs)), range(len(runs))
    for index, part in enumerate(names):
        width = np.array([run.parts.get(part, 0.0) for run in runs])
        axes.barh(
            rows, width, left=left, height=0.6, label=part, edgecolor="black", linewidth=0.7,
            color=GREYS[index % len(GREYS)], hatch=HATCHES[index % len(HATCHES)],
        )  # fmt: skip
        left += width
    for row, run in enumerate(runs):
        ends = [run.cost if end is None else end for end in (run.low, run.high)]
        if ends[0] < ends[1]:
            axes.plot(ends, [row, row], "|-", color="black", linewidth=1)
        words = f"  ${run.cost:,.2f}, {run.worked or run.hours:.2f} h"
        axes.annotate(words, (max(left[row], ends[1]), row), va="center", fontsize=8)
        left[row] = max(left[row], ends[1])
    axes.set_yticks(rows, [fill(run.name, 30) for run in runs])
    axes.invert_yaxis()
    axes.set_xlim(0, max(left.max() * 1.35, 1e-9))
    axes.grid(axis="y", visible=False)
    caption = "Cost of each run by what was paid for; a whisker is the range of spot prices."
    return _plot("cost", axes, caption, "dollars")


@style.context(STYLE)
def pareto_plot(
    planned: Sequence[Planned], front: Sequence[Planned], deadline: float | None
) -> Plot:
    """Expected hours against expected dollars: a marker per instance type, filled when spot."""
    axes = Figure(figsize=(8.6, 5.2)).subplots()
    kinds = list(dict.fromkeys(p.option.price.instance for p in planned))
    for index, kind in enumerate(kinds):  # with a thick edge, the shapes serve twice
        edge, marker = 0.8 + 1.0 * (index // len(MARKERS)), MARKERS[index % len(MARKERS)]
        look = {"color": "black", "marker": marker, "ls": "none", "mew": edge, "ms": 5.2 + edge}
        mine = [p for p in planned if p.option.price.instance == kind]
        axes.plot([], [], label=kind, mfc="white", **look)
        for spot, face in ((True, "0.6"), (False, "white")):
            found = [p for p in mine if p.option.spot == spot]
            axes.plot([p.hours for p in found], [p.cost for p in found], mfc=face, **look)
    front = sorted(front, key=lambda p: p.hours)
    axes.plot([p.hours for p in front], [p.cost for p in front], "-", color="black", lw=1)
    for p in front:
        axes.annotate(
            f"{p.option.slots}", (p.hours, p.cost), xytext=(-5, -11), ha="right",
            textcoords="offset points", fontsize=8, fontweight="bold",
        )  # fmt: skip
    if deadline is not None:
        axes.axvline(deadline, color="black", linestyle=":", linewidth=1.2)
        axes.annotate(" deadline", (deadline, 0.97), xycoords=("data", "axes fraction"))
    _log(axes, "x")
    _log(axes, "y")
    caption = (
        "Time against cost. Grey marks are spot, white ones on demand; the line joins the options "
        "that no other beats in both, labelled with their slots."
    )
    return _plot("pareto", axes, caption, "expected hours", "expected dollars")


@style.context(STYLE)
def scaling_plot(series: Mapping[str, Sequence[tuple[int, float]]], published: set[str]) -> Plot:
    """Efficiency over GPUs or machines: solid for what was measured, broken for published."""
    axes = Figure(figsize=(9.6, 4.8)).subplots()
    for index, (name, points) in enumerate(series.items()):
        broken = LINES[1 + index % (len(LINES) - 1)]
        axes.plot(
            *zip(*points, strict=True), color="0.35" if name in published else "black",
            linestyle=broken if name in published else "-",
            linewidth=1.0 if name in published else 2.0, label=fill(name, 34),
            marker=MARKERS[index % len(MARKERS)], markerfacecolor="white",
        )  # fmt: skip
    axes.axhline(1.0, color="0.6", linewidth=0.8)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.set_ylim(0, None)
    caption = "Scaling efficiency; broken lines are published."
    x = "GPUs or machines, as the series says"
    return _plot("scaling", axes, caption, x, "T(N) / (N x T(1))")


@style.context(STYLE)
def period_plot(curves: Mapping[str, Sequence[tuple[float, float]]]) -> Plot:
    """Expected dollars over the checkpoint period in minutes, a curve per way to know them."""
    axes = Figure(figsize=(8.6, 3.4)).subplots()
    for index, (name, points) in enumerate(curves.items()):
        axes.plot(
            *zip(*points, strict=True), color="black", linestyle=LINES[index % len(LINES)],
            marker=MARKERS[index % len(MARKERS)] if len(points) < 20 else None,
            markerfacecolor="white", label=fill(name, 26),
        )  # fmt: skip
    _log(axes, "x")
    axes.set_ylim(0, None)
    caption = "What the checkpoint period does to the cost."
    x = "minutes of training between checkpoints"
    return _plot("period", axes, caption, x, "expected dollars")
