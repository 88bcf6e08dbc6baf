"""The plots, as SVG text: readable in black and white, the same bytes for the same numbers."""

import io
from collections.abc import Mapping, Sequence
from itertools import cycle

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from reports.plan import Planned
from reports.run import Run
from reports.tables import Plot

STYLE = {
    "svg.hashsalt": "reports",  # ids within the SVG; random without it
    "svg.fonttype": "path",  # the same glyphs wherever the page is opened
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.grid": True,
    "grid.color": "0.85",
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.constrained_layout.use": True,
}
MARKERS = "osD^vP*X<>hdp"
HATCHES = ["", "///", "...", "xxx", "\\\\\\", "+++", "ooo", "---"]
GREYS = ["0.25", "0.85", "0.55", "0.95", "0.4", "0.75", "0.65", "0.9"]
LINES = ["-", "--", ":", "-."]


def _svg(axes: Axes) -> str:
    text = io.StringIO()
    axes.figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    svg = text.getvalue()
    return svg[svg.index("<svg") :]


@rc_context(STYLE)
def cost_plot(runs: Sequence[Run]) -> Plot:
    """Bars of dollars, hatched by what they paid for."""
    runs = [run for run in runs if run.cost is not None]
    axes = Figure(figsize=(7.2, 0.7 + 0.5 * len(runs))).subplots()
    names = list(dict.fromkeys(part for run in runs for part in run.parts))
    left = np.zeros(len(runs))
    for index, part in enumerate(names):
        width = np.array([run.parts.get(part, 0.0) for run in runs])
        look = index % len(HATCHES)
        axes.barh(
            range(len(runs)), width, left=left, height=0.6, label=part,
            color=GREYS[look], hatch=HATCHES[look], edgecolor="black", linewidth=0.7,
        )  # fmt: skip
        left += width
    for row, run in enumerate(runs):
        axes.annotate(
            f" ${run.cost:,.2f}, {run.hours:.2f} h", (left[row], row), va="center", fontsize=8
        )
    axes.set_yticks(range(len(runs)), [run.name for run in runs])
    axes.invert_yaxis()
    axes.set_xlim(0, max(left.max() * 1.3, 1e-9))
    axes.set_xlabel("dollars")
    axes.grid(axis="y", visible=False)
    if len(names) > 1:
        axes.legend(fontsize=8, frameon=False, loc="best")
    return Plot("cost", _svg(axes), "Cost of each run, by what was paid for.")


@rc_context(STYLE)
def pareto_plot(
    planned: Sequence[Planned], front: Sequence[Planned], deadline: float | None
) -> Plot:
    """Expected hours against expected dollars: a marker per instance type, filled when spot."""
    axes = Figure(figsize=(7.2, 4.6)).subplots()
    kinds = list(dict.fromkeys(p.option.price.instance for p in planned))
    marks = dict(zip(kinds, cycle(MARKERS), strict=False))
    for kind in kinds:
        mine = [p for p in planned if p.option.price.instance == kind]
        axes.plot([], [], marks[kind], color="black", label=kind)
        for spot in (True, False):
            chosen = [p for p in mine if p.option.spot == spot]
            axes.plot(
                [p.hours for p in chosen], [p.cost for p in chosen], marks[kind],
                color="black", markerfacecolor="0.45" if spot else "white", markersize=6,
                linestyle="none",
            )  # fmt: skip
    _front(axes, front)
    if deadline is not None:
        axes.axvline(deadline, color="black", linestyle=":", linewidth=1.2)
        axes.annotate(" deadline", (deadline, 0.97), xycoords=("data", "axes fraction"))
    _log_axes(axes)
    axes.set_xlabel("expected hours")
    axes.set_ylabel("expected dollars")
    axes.legend(fontsize=7, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return Plot(
        "pareto",
        _svg(axes),
        "Time against cost. Grey marks are spot, white ones on demand; the line joins the "
        "options that no other beats in both, labelled with their slots.",
    )


def _front(axes: Axes, front: Sequence[Planned]) -> None:
    front = sorted(front, key=lambda p: p.hours)
    axes.plot([p.hours for p in front], [p.cost for p in front], "-", color="black", lw=1)
    for p in front:
        axes.annotate(
            f"{p.option.slots}", (p.hours, p.cost), xytext=(5, 5),
            textcoords="offset points", fontsize=8, fontweight="bold",
        )  # fmt: skip


def _log_axes(axes: Axes) -> None:
    for axis, name in ((axes.xaxis, "x"), (axes.yaxis, "y")):
        getattr(axes, f"set_{name}scale")("log")
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(lambda value, _: f"{value:g}")


@rc_context(STYLE)
def scaling_plot(series: Mapping[str, Sequence[tuple[int, float]]], published: set[str]) -> Plot:
    """Efficiency over GPUs or machines: solid for what was measured, broken for published."""
    axes = Figure(figsize=(7.2, 4.8)).subplots()
    for index, (name, points) in enumerate(series.items()):
        broken = LINES[1 + index % (len(LINES) - 1)]
        axes.plot(
            [units for units, _ in points], [value for _, value in points],
            color="0.35" if name in published else "black",
            linestyle=broken if name in published else "-",
            linewidth=1.0 if name in published else 2.0,
            marker=MARKERS[index % len(MARKERS)], markerfacecolor="white", label=name,
        )  # fmt: skip
    axes.axhline(1.0, color="0.6", linewidth=0.8)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.set_ylim(0, None)
    axes.set_xlabel("GPUs or machines, as the series says")
    axes.set_ylabel("T(N) / (N x T(1))")
    axes.legend(fontsize=7, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.15))
    return Plot("scaling", _svg(axes), "Scaling efficiency; broken lines are published.")


@rc_context(STYLE)
def period_plot(curves: Mapping[str, Sequence[tuple[float, float]]]) -> Plot:
    """Expected dollars over the checkpoint period in minutes, a curve per way to know them."""
    axes = Figure(figsize=(7.2, 3.2)).subplots()
    for index, (name, points) in enumerate(curves.items()):
        axes.plot(
            [x for x, _ in points], [y for _, y in points], color="black",
            linestyle=LINES[index % len(LINES)], marker=MARKERS[index],
            markerfacecolor="white", label=name,
        )  # fmt: skip
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel("minutes of training between checkpoints")
    axes.set_ylabel("expected dollars")
    axes.legend(fontsize=8, frameon=False)
    return Plot("period", _svg(axes), "What the checkpoint period does to the cost.")
