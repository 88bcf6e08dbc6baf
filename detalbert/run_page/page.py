"""The page of a run: one HTML file with curves, errors, thresholds, probabilities and answers.

It is what a person opens after a training, in place of ten JSON files. It needs no network and no
other file, so it can be sent; a task stores one beside each validated checkpoint.
"""

from pathlib import Path
from typing import NamedTuple

from markupsafe import Markup

from detalbert.files import whole_file
from detalbert.pages.template import fill_template
from detalbert.run_page import advice, plots, thresholds
from detalbert.run_page.outcomes import ENOUGH, Outcomes, reliability, sweep_thresholds
from detalbert.run_page.run import REPORT, RunSummary
from detalbert.run_page.samples import Sample, right_samples, wrong_samples
from detalbert.squad.error_groups import GROUP_MEANINGS

TEMPLATE = Path(__file__).with_name("page.html.j2")
UNCALIBRATED = (
    "The probabilities are uncalibrated: the held-out questions do not show that they hold, so "
    "none is shown, and the examples below are ordered by their distance from the threshold. More "
    "held-out questions may show it."
)
TO_SAMPLES = Markup(
    '<a href="#wrong">Wrong results with their texts</a>: of the first ones, the expected answer '
    "may be what is wrong. All answers are in predictions.json beside this page, and predict.py "
    "--data says of a file which ones are wrong."
)
# Words, capitals, articles and punctuation are compared as the official scorer does it.
MEANINGS = {
    "exact": "percent of all results that are right",
    "f1": "the same, but an answer that is right in part counts in part",
    "HasAns_exact": "exact, of the questions with an answer",
    "HasAns_f1": "f1, of the questions with an answer",
    "NoAns_exact": "percent abstained from, of the questions without an answer",
    "loss": "of the held-out data, lower is better",
}


class Figure(NamedTuple):
    """A metric as the page shows it."""

    name: str
    number: str
    meaning: str


class PageSection(NamedTuple):
    """Sentences, their plots, and a table of which row number `taken` is marked."""

    title: str
    sentences: list[str]
    plots: list[Markup]
    rows: list[dict[str, str]] = []
    taken: int | None = None


class SampleList(NamedTuple):
    """Answers to look at, under a heading that `id` names in links."""

    id: str
    title: str
    answers: list[Sample]


def write_report(run: RunSummary, folder: Path) -> None:
    """Write `report.html` into a run's output directory, or into a checkpoint."""
    outcomes = run.outcomes
    sections = [_training(run)]
    result = []
    right = None
    groups = []
    samples = []
    if outcomes is not None and len(outcomes.examples):
        result = list(advice.describe_result(outcomes))
        right = outcomes.share()
        groups = [f"{group}: {GROUP_MEANINGS[group]}" for group in outcomes.count_errors()]
        sections = [*_answers(run, outcomes), *sections]
        samples = _samples(outcomes)
    text = fill_template(
        TEMPLATE,
        title=_title(run),
        run=run,
        result=result,
        right=right,
        enough=ENOUGH,
        figures=_figures(run),
        groups=groups,
        sections=sections,
        samples=samples,
    )
    with whole_file(folder / REPORT) as file:
        file.write(text)


def _title(run: RunSummary) -> str:
    """Return the run's name and main score, by which the pages of two runs are told apart."""
    if run.outcomes is not None:
        return f"{run.name}: {run.outcomes.share().percent} right"
    if run.metric not in run.best:
        return run.name
    return f"{run.name}: {run.metric} {run.best[run.metric]:.2f}"


def _figures(run: RunSummary) -> list[Figure]:
    """Return the metrics that the log prints, those of one kind of questions side by side."""
    figures = []
    metrics = {metric.name: metric for metric in run.metrics if metric.logged}
    for name in dict.fromkeys([*MEANINGS, *metrics]):
        # The official best scores are of thresholds that only take answers back; those below are
        # of all thresholds.
        if name in metrics and name in run.best and not name.startswith("best_"):
            figures.append(Figure(name, f"{run.best[name]:.2f}", MEANINGS.get(name, "")))
    return figures


def _samples(outcomes: Outcomes) -> list[SampleList]:
    """Return some wrong results and some right ones."""
    surest = "the most probable"
    if outcomes.probabilities is None:
        surest = "the farthest from the threshold"
    right_count = int(outcomes.right.sum())
    wrong_count = len(outcomes.examples) - right_count
    wrong = wrong_samples(outcomes)
    right = right_samples(outcomes)
    kinds = ", of each kind at least one" if len(wrong) < wrong_count else ""
    return [
        SampleList(
            "wrong",
            f"{len(wrong):,} of {wrong_count:,} wrong results{kinds}, {surest} first",
            wrong,
        ),
        SampleList(
            "right",
            f"{len(right):,} of {right_count:,} right results, from {surest} to the least so",
            right,
        ),
    ]


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
        sentences = list(
            advice.describe_training(run.history, main, outcomes=run.outcomes, period=run.period)
        )
        drawn.append(plots.plot_metrics(run.history, scores[:4]))
    return PageSection("Is more data or more training needed?", sentences, plots=drawn)


def _answers(run: RunSummary, outcomes: Outcomes) -> list[PageSection]:
    """Return what is wrong, which threshold to take, and what probabilities are worth."""
    errors = list(advice.describe_errors(outcomes))
    if not outcomes.right.all():
        errors.append(TO_SAMPLES)
    sweep = sweep_thresholds(outcomes)
    rows, taken = thresholds.table_thresholds(outcomes, sweep)
    sentences = [UNCALIBRATED]
    drawn = []
    if outcomes.probabilities is not None:
        bins = reliability(outcomes.probabilities, outcomes.right)
        sentences = list(
            advice.describe_probabilities(
                run.best, outcomes.probabilities, right=outcomes.right, bins=bins
            )
        )
        if len(bins) > 1:
            drawn = [plots.plot_probabilities(bins)]
    return [
        PageSection("What does the model get wrong?", errors, plots=[]),
        PageSection(
            title="Which threshold?",
            sentences=list(thresholds.describe_threshold(outcomes, sweep)),
            plots=[plots.plot_thresholds(outcomes, sweep)],
            rows=rows,
            taken=taken,
        ),
        PageSection("What is a probability worth?", sentences, plots=drawn),
    ]
