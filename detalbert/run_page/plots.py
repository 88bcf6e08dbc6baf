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
from detalbert.run_page.outcomes import FEWEST, Bin, Outcomes, Sweep

SIZE = (5.0, 3.2)  # inches
MOST_POINTS = 400  # of a curve: more are not seen, and make the page large


@style.context(STYLE)
def plot_losses(history: History) -> Markup:
    """Plot the losses of training and validation over steps."""
    figure, axes = _start(xlabel="step", ylabel="loss")
    reports = _thinned(history.reports)
    losses = [report.loss for report in reports]
    steps = [report.step for report in reports]
    (line,) = axes.plot(steps, losses, color=OTHER, lw=1, label="training")
    _plot_validations(axes, history, name="loss", color=FIRST, label="held out")
    if _limit_to_bulk(axes, losses):
        line.set_label(f"training (at first {losses[0]:.1f})")
    _add_legend(axes)
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
    """Plot up to four metrics of the validations over steps."""
    figure, axes = _start(xlabel="step", ylabel="percent")
    for name, colour in zip(names, (FIRST, SECOND, TEXT, OTHER), strict=False):
        _plot_validations(axes, history, name, color=colour, label=name)
    _add_legend(axes)
    return inline_svg(figure, f"{', '.join(names)} of the held-out data over steps")


@style.context(STYLE)
def plot_thresholds(outcomes: Outcomes, sweep: Sweep) -> Markup:
    """Plot the scores over the share of questions answered; a line marks the run's threshold."""
    figure, axes = _start(
        xlabel="percent of the questions answered (stricter thresholds: left)", ylabel="percent"
    )
    # The share of the first few answers says nothing.
    chosen = _thinned(np.flatnonzero(sweep.given >= FEWEST).tolist())
    answered = 100 / sweep.questions * sweep.given  # [n]
    shares = [outcomes.share_at(sweep.thresholds[place]) for place in chosen]
    axes.fill_between(
        answered[chosen],
        [share.low for share in shares],
        [share.high for share in shares],
        color=LINE,
        lw=0,
        label="its 95 % confidence",
    )
    right = [100 * share.matches / share.total for share in shares]
    axes.plot(answered[chosen], right, color=SECOND, label="right, of the answers")
    axes.plot(answered[chosen], sweep.f1[chosen], color=FIRST, label="F1 of all")
    axes.axvline(
        answered[sweep.at(outcomes.threshold)],
        color=TEXT,
        ls=":",
        lw=1.2,
        label=f"this run: {outcomes.threshold:.2f}",
    )
    axes.set(ylim=(0, 102))
    _add_legend(axes)
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
            gid=f"name{group.lowest:.1f}",  # which the style sheet keeps free of the line
        )
    axes.set(xlim=(0, 1.08), ylim=(0, 1.08))
    return inline_svg(figure, "Share of right answers by their probability")


def _start(xlabel: str, ylabel: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=SIZE)
    axes = figure.subplots()
    axes.set(xlabel=xlabel, ylabel=ylabel)
    return figure, axes


def _add_legend(axes: Axes) -> None:
    """Name the lines above the plot, where no line is."""
    axes.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)


def _thinned(points: Sequence) -> list:
    """Return at most MOST_POINTS of a curve's points, evenly, the first and the last included."""
    if len(points) <= MOST_POINTS:
        return list(points)
    places = np.linspace(0, len(points) - 1, MOST_POINTS).round().astype(int)
    return [points[place] for place in places]


def _limit_to_bulk(axes: Axes, losses: Sequence[float]) -> bool:
    """Leave the first losses, of random weights, out of sight if they would flatten the rest, and
    return whether some are.
    """
    finite = [loss for loss in losses if np.isfinite(loss)]
    if len(finite) <= 20:
        return False
    top = max(1.2 * float(np.quantile(finite, 0.95)), 1.1 * axes.dataLim.y0)
    axes.set_ylim(top=top, bottom=0)
    return max(finite) > top
