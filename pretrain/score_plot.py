"""The curves of a pretraining's scores over its steps, as a file."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from detalbert.atomic import whole_file
from detalbert.errors import UserError
from detalbert.training.local import HERE

STYLE = HERE / "reports" / "page.mplstyle"
# Two panels: a title, and what its lines show.
PANELS = (
    (
        "In pretraining: right in its own validation",
        {"sop_accuracy": "sentence order", "mlm_accuracy": "masked tokens"},
    ),
    ("After fine-tuning: right answers", {"f1": "F1", "exact": "exact match"}),
)
LOOKS = ({"marker": "o"}, {"marker": "s", "linestyle": "--", "markerfacecolor": "white"})
LEAST = 0.08  # of a panel's height, between the labels of two lines


def check_plotting() -> None:
    """Raise UserError where matplotlib is not installed: before hours of fine-tuning."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise UserError(
            "matplotlib is not installed, for the plot; pip install -r reports/requirements.txt"
        ) from None


def draw(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write the plot as SVG, whole or not at all; the same bytes for the same rows.

    Args: rows: in step order, each with `steps` and those of the percentages that it has.
    """
    from matplotlib import style
    from matplotlib.figure import Figure

    with style.context(STYLE), whole_file(path) as file:
        figure = Figure(figsize=(8.6, 3.4))
        for axes, (title, lines) in zip(figure.subplots(1, 2), PANELS, strict=True):
            axes.set_title(title, loc="left", fontsize=9, fontweight="bold")
            axes.set_xlabel("pretraining steps")
            axes.xaxis.set_major_formatter(lambda steps, _: f"{steps:,.0f}")
            axes.yaxis.set_major_formatter(lambda percent, _: f"{percent:g} %")
            _draw_lines(axes, rows, lines)
        metadata = {"Date": None, "Creator": None}
        figure.savefig(file, format="svg", metadata=metadata)


def _draw_lines(axes: Any, rows: Sequence[Mapping[str, Any]], lines: Mapping[str, str]) -> None:
    """A line for each score, its name and last value at its end."""
    axes.set_xlim(0, rows[-1]["steps"] * 1.55)  # room for the names
    axes.locator_params(axis="x", nbins=5)
    axes.set_xticks([tick for tick in axes.get_xticks() if tick <= rows[-1]["steps"]])
    ends = []
    for look, (key, name) in zip(LOOKS, lines.items(), strict=True):
        points = [(row["steps"], row[key]) for row in rows if key in row]
        if points:
            axes.plot(*zip(*points, strict=True), color="black", linewidth=1.4, **look)
            ends.append((points[-1], f"{name} {points[-1][1]:.1f} %"))
    axes.margins(y=0.15)
    low, high = axes.get_ylim()
    heights = [value for (_, value), _ in ends]
    if len(ends) == 2 and (near := LEAST * (high - low) - abs(heights[0] - heights[1])) > 0:
        up = 1 if heights[0] >= heights[1] else -1
        heights = [heights[0] + up * near / 2, heights[1] - up * near / 2]
    for ((steps, _), text), height in zip(ends, heights, strict=True):
        words: Any = {"textcoords": "offset points", "va": "center", "fontsize": 8}
        axes.annotate(text, (steps, height), xytext=(7, 0), **words)
