"""The plot of a bill as inline SVG."""

from collections.abc import Sequence
from itertools import cycle
from textwrap import fill
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup
from matplotlib import style
from matplotlib.figure import Figure

from cluster.page import PAGE, STYLE, TEXT, inline_svg
from reports.runs import Run

# The first seven by Okabe and Ito: told apart by the colour-blind, on light and dark.
COLOURS = "#0072b2 #e69f00 #009e73 #f0e442 #d55e00 #56b4e9 #cc79a7 #999999 #7b4ea3 #8c564b".split()
COLOURS += "#17becf #b5cf6b #c49c94 #1b3a6b".split()
CAPTION = "Cost of each run by what was paid for; a whisker is the range of spot prices."


@style.context(STYLE)
def cost_plot(runs: Sequence[Run]) -> Markup:
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
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=7)
    return inline_svg(axes.figure, CAPTION)
