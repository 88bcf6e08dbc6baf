"""The page of a run: one HTML file with curves, errors, thresholds, probabilities and answers.

It is what a person opens after a training, in place of ten JSON files. It needs no network and no
other file, so it can be sent; a task stores one beside each validated checkpoint.
"""

from pathlib import Path
from typing import NamedTuple

from markupsafe import Markup

from detalbert.atomic import whole_file
from detalbert.pages.template import fill_template
from detalbert.run_page import advice, plots
from detalbert.run_page.outcomes import Outcomes, reliability, sweep_thresholds
from detalbert.run_page.run import REPORT, RunSummary
from detalbert.run_page.samples import right_samples, wrong_samples
from detalbert.squad.error_groups import GROUP_MEANINGS

TEMPLATE = Path(__file__).with_name("page.html.j2")
TO_SAMPLES = Markup('<a href="#wrong">Wrong answers with their texts</a>')
# Words, capitals, articles and punctuation are compared as the official scorer does it.
MEANINGS = {
    "exact": "percent of all held-out questions that are answered as expected, or rightly not",
    "f1": "the same, but an answer that shares words with the expected one counts in part",
    "HasAns_exact": "exact, of the questions that have an answer",
    "HasAns_f1": "f1, of the questions that have an answer",
    "NoAns_exact": "percent of the questions without an answer from which the model abstains",
    "loss": "how unlikely the model finds what is expected; 0 is best, and there is no worst",
}


class PageSection(NamedTuple):
    """Sentences and their plot."""

    title: str
    sentences: list[str]
    plots: list[Markup]


def write_report(run: RunSummary, folder: Path) -> None:
    """Write `report.html` into a run's output directory, or into a checkpoint."""
    sections = [_training(run)]
    wrong = []
    right = []
    if run.outcomes is not None and len(run.outcomes.examples):
        sections = [*_answers(run, run.outcomes), *sections]
        wrong = wrong_samples(run.outcomes)
        right = right_samples(run.outcomes)
    figures = _figures(run)
    text = fill_template(
        TEMPLATE,
        run=run,
        figures=figures,
        meanings=_meanings(figures, run.outcomes),
        sections=sections,
        wrong=wrong,
        right=right,
    )
    with whole_file(folder / REPORT) as file:
        file.write(text)


def _figures(run: RunSummary) -> list[tuple[str, str]]:
    """Return the metrics that the log prints, as names and numbers."""
    figures = []
    for metric in run.metrics:
        # The official best scores are of thresholds that only take answers back; those below are
        # of all thresholds.
        is_official_best = metric.name.startswith("best_")
        if metric.logged and metric.name in run.best and not is_official_best:
            figures.append((metric.name, f"{run.best[metric.name]:.2f}"))
    return figures


def _meanings(figures: list[tuple[str, str]], outcomes: Outcomes | None) -> list[str]:
    """Return a line for each figure, and for each kind of wrong answers."""
    lines = [f"{name}: {MEANINGS[name]}" for name, _ in figures if name in MEANINGS]
    if outcomes is not None:
        lines += [f"{group}: {GROUP_MEANINGS[group]}" for group in outcomes.count_errors()]
    return lines


def _training(run: RunSummary) -> PageSection:
    """Return the curves, and whether to train longer or on more data."""
    scores = []
    for metric in run.metrics:
        if metric.charted and not metric.smaller_is_better and metric.name in run.best:
            scores.append(metric.name)
    sentences = []
    drawn = [plots.plot_losses(run.history)]
    if scores:
        main = run.metric if run.metric in scores else scores[0]
        sentences = list(advice.describe_training(run.history, main, run.outcomes))
        drawn.append(plots.plot_metrics(run.history, scores[:3]))
    return PageSection("Is more data or more training needed?", sentences, plots=drawn)


def _answers(run: RunSummary, outcomes: Outcomes) -> list[PageSection]:
    """Return what is wrong, which threshold to take, and what probabilities are worth."""
    sweep = sweep_thresholds(outcomes)
    threshold = outcomes.threshold
    answerable = outcomes.answerable
    has_both_kinds = bool(answerable.any() and not answerable.all())
    errors = list(advice.describe_errors(outcomes))
    if not outcomes.right.all():
        errors.append(TO_SAMPLES)
    sections = [
        PageSection(
            title="What does the model get wrong?",
            sentences=errors,
            plots=[],
        ),
        PageSection(
            title="Which threshold?",
            sentences=list(advice.describe_threshold(sweep, threshold, has_both_kinds)),
            plots=[plots.plot_thresholds(sweep, threshold)],
        ),
    ]
    if outcomes.probabilities is None:
        sentences = [
            "The probabilities are uncalibrated: the held-out questions do not show that they "
            "hold, so none is shown. A larger validation set may."
        ]
        return [*sections, PageSection("What is a probability worth?", sentences, plots=[])]
    bins = reliability(outcomes.probabilities, outcomes.right)
    sentences = list(advice.describe_probabilities(run.best, bins))
    drawn = [plots.plot_probabilities(bins)] if len(bins) > 1 else []
    return [*sections, PageSection("What is a probability worth?", sentences, plots=drawn)]
