"""A plan as one HTML page: the option to take, one picture, and all options.

The page needs no network and no other file, so that it can be sent to whoever decides.
"""

import html
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from cluster.options import find_front
from detalbert.files import whole_file, writing

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="generator" content="detalbert">
<title>{title}</title><style>
body {{ font: 15px/1.5 sans-serif; margin: 2em; color: #222; background: #fff }}
table {{ border-collapse: collapse }} th, td {{ padding: .3em .7em; border-bottom: 1px solid #ddd }}
th, td {{ text-align: left; white-space: nowrap }} svg {{ max-width: 100%; height: auto }}
</style></head><body><h1>{title}</h1>
{lines}
{picture}
{table}
</body></html>
"""
COLUMNS = ["machine", "count", "slots", "market", "hours", "dollars", "GPU", "efficiency", "pool"]
COLORS = {"on demand": "tab:blue", "spot": "tab:orange"}


def write_page(path: Path, title: str, lines: Sequence[str], plan: Any) -> None:
    """Write the page of a `cluster.plan.Plan`; `lines` are what the terminal says of it.

    Raises:
        UserError: if it cannot be written.
    """
    fitting = plan.options[plan.options["fits"]]
    page = PAGE.format(
        title=html.escape(title),
        lines="\n".join(f"<p>{html.escape(line)}</p>" for line in lines),
        picture=_draw(fitting, plan),
        table=fitting[COLUMNS].to_html(index=False, border=0, float_format="{:,.2f}".format),
    )
    with writing(path, "give --html another file"), whole_file(path) as temporary:
        temporary.write_text(page, encoding="utf-8")


def _draw(fitting: pd.DataFrame, plan: Any) -> str:
    """Return cost against time as SVG: all options, the front, the best one, the published run."""
    figure = Figure()
    axes = figure.subplots()
    for market, options in fitting.groupby("market"):
        axes.scatter(options["hours"], options["dollars"], s=12, c=COLORS[market], label=market)
    front = find_front(fitting)
    axes.plot(front["hours"], front["dollars"], color="gray", label="none is faster and cheaper")
    best = plan.best
    axes.plot(best["hours"], best["dollars"], "r*", markersize=14, label="the one to take")
    published = plan.published
    if published is not None:
        axes.plot(published.hours, published.cost, "kx", label="the published run, April 2021")
    axes.set(xscale="log", yscale="log", xlabel="hours", ylabel="dollars")
    figure.legend(loc="upper center", ncols=3)
    file = io.StringIO()
    figure.savefig(file, format="svg")
    _, _, svg = file.getvalue().partition("<svg")
    return "<svg" + svg
