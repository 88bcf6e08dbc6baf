"""The plots of the page of a run: curves, thresholds, probabilities."""

from collections.abc import Sequence

import numpy as np
from markupsafe import Markup
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from detalbert.engine.history import History
from detalbert.pages.svg import FIRST, LINE, OTHER, SECOND, STYLE, TEXT, inline_svg
from detalbert.run_page.outcomes import ENOUGH, FEWEST, Bin, Sweep

SIZE = (5.0, 3.2)  # inches
MOST_POINTS = 400  # of a curve: more are not seen, and make the page large


@style.context(STYLE)
def plot_losses(history: History) -> Markup:
    """Plot the losses of training and validation over steps."""
    figure, axes = _start(xlabel="step", ylabel="loss")
    reports = _thinned(history.reports)
    axes.plot(
        [report.step for report in reports],
        [report.loss for report in reports],
        color=OTHER,
        lw=1,
        label="training",
    )
    _plot_validations(axes, history, name="loss", color=FIRST, label="held out")
    _limit_to_bulk(axes, [report.loss for report in reports])
    axes.legend(frameon=False)
    return inline_svg(figure, "Losses of training and of the held-out data over steps")


def _plot_validations(axes: Axes, history: History, name: str, color: str, label: str) -> None:
    """Plot a metric of the validations over steps, which are whole numbers."""
    validated = [point for point in history.validations if name in point.metrics]
    axes.plot(
        [point.step for point in validated],
        [point.metrics[name] for point in validated],
        "o-",
        color=color,
        ms=3,
        label=label,
    )
    axes.xaxis.set_major_locator(MaxNLocator(nbins="auto", integer=True))


@style.context(STYLE)
def plot_metrics(history: History, names: Sequence[str]) -> Markup:
    """Plot up to three metrics of the validations over steps."""
    figure, axes = _start(xlabel="step", ylabel="percent")
    for name, colour in zip(names, (FIRST, SECOND, TEXT), strict=False):
        _plot_validations(axes, history, name, color=colour, label=name)
    axes.legend(frameon=False)
    return inline_svg(figure, f"{', '.join(names)} of the held-out data over steps")


@style.context(STYLE)
def plot_thresholds(sweep: Sweep, threshold: float) -> Markup:
    """Plot the scores over the share of questions answered; a line marks the run's threshold."""
    figure, axes = _start(xlabel="percent of the questions answered", ylabel="percent")
    # The share of the first few answers says nothing.
    chosen = _thinned(np.flatnonzero(sweep.given >= FEWEST).tolist())
    answered = 100 / sweep.questions * sweep.given  # [n]
    right = 100 / sweep.given[chosen] * sweep.matches[chosen]
    axes.plot(answered[chosen], sweep.f1[chosen], color=FIRST, label="F1")
    axes.plot(answered[chosen], right, color=SECOND, label="right, of those answered")
    axes.axvline(
        answered[sweep.at(threshold)],
        color=TEXT,
        ls=":",
        lw=1.2,
        label=f"this run: {threshold:.2f}",
    )
    if sweep.questions > FEWEST:
        few = min(100, 100 * ENOUGH / sweep.questions)
        axes.axvspan(0, few, color=LINE, lw=0, zorder=0, label=f"fewer than {ENOUGH} answers")
    axes.set(ylim=(0, 102))
    axes.legend(frameon=False)
    return inline_svg(figure, "F1, and the share that is right, by how many questions are answered")


@style.context(STYLE)
def plot_probabilities(bins: Sequence[Bin]) -> Markup:
    """Plot the share that is right over the probability, with the number of results; the line is
    where both are equal.
    """
    figure, axes = _start(xlabel="probability given", ylabel="share that is right")
    axes.plot([0, 1], [0, 1], color=OTHER, lw=1)
    sizes = [20 + 200 * group.answers / sum(other.answers for other in bins) for group in bins]
    axes.scatter(
        [group.probability for group in bins],
        [group.matches / group.answers for group in bins],
        s=sizes,
        color=FIRST,
        zorder=3,
    )
    for group, size in zip(bins, sizes, strict=True):
        share = group.matches / group.answers
        radius = (size / np.pi) ** 0.5  # points
        axes.annotate(
            f"{group.answers:,}",
            xy=(group.probability, share),
            # Inside the plot: above the lower points, below the upper ones.
            xytext=(0, (radius + 8) * (1 if share < 0.5 else -1)),
            textcoords="offset points",
            ha="center",
            va="center",
            fontsize="small",
        )
    axes.set(xlim=(0, 1.08), ylim=(0, 1.08))
    return inline_svg(figure, "Share of right answers by their probability")


def _start(xlabel: str, ylabel: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=SIZE)
    axes = figure.subplots()
    axes.set(xlabel=xlabel, ylabel=ylabel)
    return figure, axes


def _thinned(points: Sequence) -> list:
    """Return at most MOST_POINTS of a curve's points, evenly, the first and the last included."""
    if len(points) <= MOST_POINTS:
        return list(points)
    places = np.linspace(0, len(points) - 1, MOST_POINTS).round().astype(int)
    return [points[place] for place in places]


def _limit_to_bulk(axes: Axes, losses: Sequence[float]) -> None:
    """Leave the first losses, of random weights, out of sight if they would flatten the rest."""
    finite = [loss for loss in losses if np.isfinite(loss)]
    if len(finite) > 20:
        top = 1.2 * float(np.quantile(finite, 0.95))
        axes.set_ylim(top=max(top, 1.1 * axes.dataLim.y0), bottom=0)
