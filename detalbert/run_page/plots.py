"""The plots of the page of a run: curves, thresholds, probabilities.

matplotlib draws with colours that stand for those of the style sheet (page.css), and these are
replaced in the text: a plot is a part of the page, light or dark, and needs no file of its own.
"""

import io
from pathlib import Path

import numpy as np
import pandas as pd
from markupsafe import Markup
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from detalbert.engine.history import History
from detalbert.run_page.outcomes import (
    FEWEST,
    Outcomes,
    reliability,
    sweep_thresholds,
)

STYLE = Path(__file__).with_name("page.mplstyle")
OTHER = "#9aa1a9"
FIRST = "#0b5cad"
SECOND = "#b34700"
# The colours of a figure, and those of the page in their place.
COLOURS = {
    "#000000": "currentColor",
    OTHER: "var(--other)",
    FIRST: "var(--first)",
    SECOND: "var(--second)",
    "#d9d9d9": "var(--line)",
    "#ffffff": "var(--page)",
}
MOST_POINTS = 300  # of a curve: more are not seen, and make the page large


@style.context(STYLE)
def plot_curve(history: History, name: str, baseline: float | None = None) -> Markup | None:
    """Plot a metric of the validations over steps, the loss with that of training; None if there
    is no curve.
    """
    validations = [point for point in history.validations if name in point.metrics]
    points = [(point.step, point.metrics[name]) for point in validations]
    reports = history.reports if name == "loss" else []
    if max(len(points), len(reports)) < 2:
        return None
    figure, axes = _start("step", name)
    if reports:
        losses = _thin(np.array(reports))
        axes.plot(
            *losses.T,
            color=OTHER,
            lw=1,
            label="training",
        )
        # The first losses, of random weights, would flatten the others.
        top = 1.3 * np.quantile(losses[:, 1], 0.95)
        if np.isfinite(top):
            axes.set_ylim(0, top)
    held_out = np.array(points).reshape(-1, 2)
    axes.plot(
        *held_out.T,
        "o-",
        color=FIRST,
        ms=3,
        label="held out",
    )
    if baseline is not None:
        axes.axhline(
            baseline,
            color=SECOND,
            ls=":",
            label="best constant guess",
        )
    axes.locator_params("x", nbins=5, integer=True)
    return _finish(figure, f"Curve of {name} over steps")


@style.context(STYLE)
def plot_thresholds(outcomes: Outcomes) -> Markup | None:
    """Plot the share of answers that is right over how many are given; None if it is no curve."""
    table = outcomes.table
    sweep = sweep_thresholds(table)
    if len(sweep) < FEWEST:
        return None
    figure, axes = _start("percent of questions answered", "percent right")
    points = _thin(sweep[["answered", "right"]].to_numpy())
    axes.plot(*points.T, color=FIRST)
    axes.set_ylim(0, 105)  # of a flat line matplotlib would show a few percent
    is_answered = table.odds <= outcomes.threshold
    axes.axvline(
        100 * is_answered.mean(),
        color="black",
        ls=":",
        label=f"this run: {outcomes.threshold:g}",
    )
    return _finish(figure, "Share of answers that are right, by how many are given")


@style.context(STYLE)
def plot_probabilities(table: pd.DataFrame) -> Markup | None:
    """Plot the share that is right over the probability; None if that is no curve."""
    bins = reliability(table)
    if len(bins) < 2:
        return None
    figure, axes = _start("probability given", "share right")
    axes.plot(
        [0, 1],
        [0, 1],
        color=OTHER,
        lw=1,
        label="as it says",
    )
    axes.scatter(
        bins.probability,
        bins.right,
        s=20 + 150 * bins["count"] / len(table),
        color=FIRST,
        zorder=3,
    )
    return _finish(figure, "Share of right answers by their probability")


def _start(xlabel: str, ylabel: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(4.2, 2.6))
    axes = figure.subplots()
    axes.set(xlabel=xlabel, ylabel=ylabel)
    return figure, axes


def _finish(figure: Figure, label: str) -> Markup:
    """Name the lines above the plot, where no line is; return it as SVG, its text as text.

    Args:
        label: what it shows, for a screen reader.
    """
    figure.axes[0].legend(
        frameon=False,
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=2,
    )
    buffer = io.StringIO()
    # Without metadata, whose date would make two pages of the same numbers differ.
    metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(buffer, format="svg", metadata=metadata)
    svg = buffer.getvalue().partition("<svg")[2]
    for colour, name in COLOURS.items():
        svg = svg.replace(colour, name)
    return Markup(f'<svg role="img" aria-label="{label}"{svg}')


def _thin(points: np.ndarray) -> np.ndarray:
    """Return at most MOST_POINTS points of a curve [points, 2], the last one included."""
    step = len(points) // MOST_POINTS + 1
    return points[::-step]
