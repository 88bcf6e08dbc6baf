"""Plots of reports as inline SVG; every series has its own look."""

from collections.abc import Sequence
from itertools import cycle
from textwrap import fill
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cluster.page import OTHER, PAGE, STYLE, TEXT, inline_svg
from reports.report import Plot
from reports.runs import Run

MARKERS = "osD^vP*X<>hdp"
# The first seven by Okabe and Ito: told apart by the colour-blind, on light and dark.
COLOURS = "#0072b2 #e69f00 #009e73 #f0e442 #d55e00 #56b4e9 #cc79a7 #999999 #7b4ea3 #8c564b".split()
COLOURS += "#17becf #b5cf6b #c49c94 #1b3a6b".split()


def _plot(name: str, axes: Axes, caption: str) -> Plot:
    # Over the lines and bars the legend would hide some.
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=7)
    return Plot(name, inline_svg(axes.figure, caption), caption)


@style.context(STYLE)
def cost_plot(runs: Sequence[Run]) -> Plot:
    """Draw bars of dollars, coloured by purpose; whiskers from the lowest to the highest."""
    runs = [run for run in runs if run.cost is not None]
    parts = pd.DataFrame([run.parts for run in runs]).fillna(0.0)
    axes = Figure(figsize=(8.6, max(0.9 + 0.5 * len(runs), 0.2 * parts.shape[1]))).subplots()
    left = np.zeros(len(runs))
    look: Any = {"height": 0.6, "edgecolor": PAGE, "linewidth": 0.7}
    for (part, width), colour in zip(parts.items(), cycle(COLOURS), strict=False):
        axes.barh(range(len(runs)), width, left=left, label=part, color=colour, **look)
        left += width.to_numpy()
    for row, run in enumerate(runs):
        ends: list[Any] = [run.cost if end is None else end for end in (run.low, run.high)]
        if ends[0] < ends[1]:
            axes.plot(ends, [row, row], "|-", color=TEXT, linewidth=1)
        left[row] = max(left[row], ends[1])
        words = f"${run.cost:,.2f}, {run.worked or run.hours:.2f} h"
        beside: Any = {"xytext": (6, 0), "textcoords": "offset points", "va": "center"}
        axes.annotate(words, (left[row], row), fontsize=8, **beside)
    axes.set(xlabel="dollars", xlim=(0, max(left.max() * 1.35, 1e-9)))
    axes.set_yticks(range(len(runs)), [fill(run.name, 30) for run in runs])
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    caption = "Cost of each run by what was paid for; a whisker is the range of spot prices."
    return _plot("cost", axes, caption)


@style.context(STYLE)
def scaling_plot(points: pd.DataFrame) -> Plot:
    """Draw efficiency over GPUs or machines: solid if measured, broken if published."""
    axes = Figure(figsize=(9.6, 4.8)).subplots()
    colours, markers = cycle(COLOURS), cycle(MARKERS)
    for name, found in points.groupby("series", sort=False):
        look: Any = {"color": next(colours), "marker": next(markers), "label": fill(str(name), 34)}
        line = "-" if (found["source"] == "measured").any() else "--"
        axes.plot(found["N"], found["efficiency"], line, **look)
    axes.axhline(1.0, color=OTHER, linewidth=0.8)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.set(xlabel="GPUs or machines", ylabel="T(N) / (N x T(1))", ylim=(0, None))
    return _plot("scaling", axes, "Scaling efficiency; broken lines are published.")
