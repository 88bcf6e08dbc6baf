"""The plots of the page of a run: scores, curves, thresholds, errors, probabilities."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from markupsafe import Markup
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from detalbert.engine.history import History
from detalbert.pages.svg import FIRST, OTHER, SECOND, STYLE, TEXT, inline_svg
from detalbert.run_page.outcomes import (
    FEWEST,
    Outcomes,
    interval,
    reliability,
    sweep_thresholds,
)

MOST_POINTS = 300  # of a curve: more are not seen, and make the page large


@style.context(STYLE)
def plot_scores(groups: dict[str, pd.Series], abstaining: float) -> Markup:
    """Plot mean scores with their 95 % intervals; a line marks a model that always abstains."""
    figure, axes = _start("percent")
    for name, scores in groups.items():
        value = 100 * scores.mean()
        low, high = interval(scores)
        axes.barh(name, value, color=FIRST, height=0.55)
        axes.plot([low, high], [name, name], "|-", color=TEXT)
        axes.annotate(f"{value:.1f}", (high + 2, name), va="center", weight="bold")
    if abstaining:
        axes.axvline(abstaining, color=SECOND, ls=":", label="always abstaining")
        _add_legend(axes)
    axes.invert_yaxis()
    axes.set(xlim=(0, 116), xticks=range(0, 101, 25))
    axes.grid(False, axis="y")
    return inline_svg(figure, "Scores with their intervals")


@style.context(STYLE)
def plot_curve(history: History, name: str, baseline: float | None = None) -> Markup | None:
    """Plot a metric of the validations over steps, the loss with that of training; None if there
    is no curve.
    """
    figure, axes = _start("step", name)
    validations = [point for point in history.validations if name in point.metrics]
    reports = history.reports if name == "loss" else []
    if max(len(validations), len(reports)) < 2:
        return None
    if reports:
        steps, losses = np.array(reports)[_even_places(len(reports))].T
        axes.plot(steps, losses, color=OTHER, lw=1, label="training")
        # The first losses, of random weights, would flatten the others.
        top = 1.3 * np.quantile(losses, 0.95)
        if 0 < top < np.inf:
            axes.set(ylim=(0, top))
    values = [point.metrics[name] for point in validations]
    steps = [point.step for point in validations]
    axes.plot(steps, values, "o-", color=FIRST, ms=3, label="held out")
    if baseline is not None:
        axes.axhline(baseline, color=SECOND, ls=":", label="best constant guess")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    _add_legend(axes)
    return inline_svg(figure, f"Curve of {name} over steps")


@style.context(STYLE)
def plot_thresholds(outcomes: Outcomes) -> Markup | None:
    """Plot the share of answers that is right over how many are given; None if it is no curve."""
    sweep = sweep_thresholds(outcomes.table)
    if len(sweep) < FEWEST:
        return None
    figure, axes = _start("percent of questions answered", "percent right")
    points = sweep.iloc[_even_places(len(sweep))]
    axes.plot(points.answered, points.right, color=FIRST)
    own = 100 * (outcomes.table.odds <= outcomes.threshold).mean()
    axes.axvline(own, color=TEXT, ls=":", label=f"this run: {outcomes.threshold:g}")
    _add_legend(axes)
    return inline_svg(figure, "Share of answers that are right, by how many are given")


@style.context(STYLE)
def plot_errors(groups: Sequence[str]) -> Markup | None:
    """Plot the number of wrong answers by their groups; None if there are none."""
    if not len(groups):
        return None
    counts = pd.Series(groups).value_counts()
    figure, axes = _start("wrong answers")
    bars = axes.barh(counts.index, counts, color=SECOND, height=0.55)
    axes.bar_label(bars, padding=3, weight="bold")
    axes.margins(x=0.15)
    axes.set(ylim=(4.6, -0.6))  # from above, as thick however few
    axes.grid(False, axis="y")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=4, integer=True))
    return inline_svg(figure, "Wrong answers by kind")


@style.context(STYLE)
def plot_probabilities(table: pd.DataFrame) -> Markup | None:
    """Plot the share that is right over the probability; None if that is no curve."""
    bins = reliability(table)
    if len(bins) < 2:
        return None
    figure, axes = _start("probability given", "share right")
    axes.plot([0, 1], [0, 1], color=OTHER, lw=1)
    sizes = 20 + 150 * bins["count"] / len(table)
    axes.scatter(bins.probability, bins.right, s=sizes, color=FIRST, zorder=3)
    return inline_svg(figure, "Share of right answers by their probability")


def _start(xlabel: str, ylabel: str = "") -> tuple[Figure, Axes]:
    figure = Figure(figsize=(4.2, 2.6))
    axes = figure.subplots()
    axes.set(xlabel=xlabel, ylabel=ylabel)
    return figure, axes


def _add_legend(axes: Axes) -> None:
    """Name the lines above the plot, where no line is."""
    axes.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 1), ncols=2)


def _even_places(count: int) -> np.ndarray:
    """Return at most MOST_POINTS of `count` places, the first and the last included."""
    places = np.linspace(0, count - 1, min(count, MOST_POINTS))
    return places.round().astype(int)
