"""Plots as SVG text: readable in black and white, the same bytes for the same numbers."""

import base64
import io
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from reports.report import Plot
from reports.runs import Run

STYLE = Path(__file__).with_name("page.mplstyle")
MARKERS = "osD^vP*X<>hdp"
HATCHES = ["", "///", "...", "xxx", "\\\\\\", "+++", "ooo", "---", "|||", "**"]
GREYS = ["0.25", "0.85", "0.55", "0.95", "0.4", "0.75", "0.65", "0.9"]


def _plot(name: str, axes: Axes, caption: str, x: str, y: str = "") -> Plot:
    axes.set(xlabel=x, ylabel=y)
    if axes.get_legend_handles_labels()[1]:  # over the lines and bars it would hide some
        axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=7)
    text = io.StringIO()
    axes.figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})  # type: ignore[union-attr]  # no SubFigure
    svg = text.getvalue()
    return Plot(name, base64.b64encode(svg[svg.index("<svg") :].encode()).decode(), caption)


@style.context(STYLE)
def cost_plot(runs: Sequence[Run]) -> Plot:
    """Draw bars of dollars, hatched by purpose; whiskers from the lowest to the highest."""
    runs = [run for run in runs if run.cost is not None]
    parts = pd.DataFrame([run.parts for run in runs]).fillna(0.0)
    axes = Figure(figsize=(8.6, max(0.9 + 0.5 * len(runs), 0.2 * parts.shape[1]))).subplots()
    left = np.zeros(len(runs))
    for index, (part, width) in enumerate(parts.items()):
        look: Any = {"edgecolor": "black", "linewidth": 0.7, "label": part}
        look |= {"color": GREYS[index % len(GREYS)], "hatch": HATCHES[index % len(HATCHES)]}
        axes.barh(range(len(runs)), width, left=left, height=0.6, **look)
        left += width.to_numpy()
    for row, run in enumerate(runs):
        ends: list[Any] = [run.cost if end is None else end for end in (run.low, run.high)]
        if ends[0] < ends[1]:
            axes.plot(ends, [row, row], "|-", color="black", linewidth=1)
        left[row] = max(left[row], ends[1])
        words = f"  ${run.cost:,.2f}, {run.worked or run.hours:.2f} h"
        axes.annotate(words, (left[row], row), va="center", fontsize=8)
    axes.set_yticks(range(len(runs)), [fill(run.name, 30) for run in runs])
    axes.invert_yaxis()
    axes.set_xlim(0, max(left.max() * 1.35, 1e-9))
    axes.grid(axis="y", visible=False)
    caption = "Cost of each run by what was paid for; a whisker is the range of spot prices."
    return _plot("cost", axes, caption, "dollars")


@style.context(STYLE)
def pareto_plot(options: pd.DataFrame, deadline: float | None) -> Plot:
    """Draw expected hours against dollars: a marker per instance type, filled if spot."""
    axes = Figure(figsize=(8.6, 5.2)).subplots()
    kinds = options["hardware"].str.partition(" x ")[2]
    for index, kind in enumerate(kinds.unique()):  # with a thick edge, the shapes serve twice
        edge, marker = 0.8 + 1.0 * (index // len(MARKERS)), MARKERS[index % len(MARKERS)]
        look: dict[str, Any] = {"color": "black", "marker": marker, "ls": "none"}
        look |= {"mew": edge, "ms": 5.2 + edge}
        axes.plot([], [], label=kind, mfc="white", **look)
        for market, face in (("spot", "0.6"), ("on demand", "white")):
            mine = options[(kinds == kind) & (options["market"] == market)]
            axes.plot(mine["hours"], mine["cost"], mfc=face, **look)
    front = options[options["front"] == "*"].sort_values("hours")
    axes.plot(front["hours"], front["cost"], "-", color="black", lw=1)
    words: Any = {"textcoords": "offset points", "fontsize": 8, "fontweight": "bold"}
    for slots, *point in front[["slots", "hours", "cost"]].itertuples(index=False):
        axes.annotate(f"{slots}", point, xytext=(-5, -11), ha="right", **words)
    if deadline is not None:
        axes.axvline(deadline, color="black", linestyle=":", linewidth=1.2)
        axes.annotate(" deadline", (deadline, 0.97), xycoords=("data", "axes fraction"))
    axes.set(xscale="log", yscale="log")
    for axis in (axes.xaxis, axes.yaxis):  # ticks at 1, 2 and 5 times a power of ten
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(lambda value, _: f"{value:g}")
    caption = "Time against cost. Grey marks are spot, white ones on demand; the line joins what "
    caption += "no other option beats in both, labelled with its slots."
    return _plot("pareto", axes, caption, "expected hours", "expected dollars")


@style.context(STYLE)
def scaling_plot(points: pd.DataFrame) -> Plot:
    """Draw efficiency over GPUs or machines: solid if measured, broken if published."""
    axes = Figure(figsize=(9.6, 4.8)).subplots()
    for index, (name, found) in enumerate(points.groupby("series", sort=False)):
        published = (found["source"] == "published").any()
        broken = ("0.35", ("--", ":", "-.")[index % 3], 1.0)
        color, line, width = broken if published else ("black", "-", 2.0)
        look: Any = {"marker": MARKERS[index % len(MARKERS)], "mfc": "white", "lw": width}
        look |= {"color": color, "ls": line, "label": fill(str(name), 34)}
        axes.plot(found["N"], found["efficiency"], **look)
    axes.axhline(1.0, color="0.6", linewidth=0.8)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.set_ylim(0, None)
    caption = "Scaling efficiency; broken lines are published."
    return _plot("scaling", axes, caption, "GPUs or machines", "T(N) / (N x T(1))")
