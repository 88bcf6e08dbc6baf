"""The page of a run: one HTML file with a verdict, scores, curves and wrong answers.

It is what a person opens after a training. It needs no network and no other file, so it can be
sent; a task stores one beside each validated checkpoint.
"""

from pathlib import Path
from typing import Any

from markupsafe import Markup

from detalbert.files import whole_file
from detalbert.pages.template import fill_template
from detalbert.run_page import plots, verdict
from detalbert.run_page.outcomes import Outcomes
from detalbert.run_page.run import MARK, REPORT, RunSummary, check_report
from detalbert.run_page.samples import choose_samples

TEMPLATE = Path(__file__).with_name("page.html.j2")


def write_report(run: RunSummary, folder: Path) -> None:
    """Write `report.html` into a run's output directory, or into a checkpoint.

    Raises:
        UserError: there is one that no run wrote.
    """
    check_report(folder)
    if run.outcomes is not None and len(run.outcomes.table):
        values = _describe_answers(run, run.outcomes)
    else:
        values = _describe_metrics(run)
    values["panels"]["Does it still learn?"] = plots.plot_curve(run.history, "loss")
    text = fill_template(TEMPLATE, mark=Markup(MARK), run=run, **values)
    with whole_file(folder / REPORT) as file:
        file.write(text)


def _describe_answers(run: RunSummary, outcomes: Outcomes) -> dict[str, Any]:
    """Return the template's values for a run with answers."""
    table = outcomes.table
    groups = {"F1": table.f1, "exact": table.exact}
    if table.answerable.nunique() == 2:
        groups["with an answer"] = table.exact[table.answerable]
        groups["without one"] = table.exact[~table.answerable]
    abstaining = 100 * (~table.answerable).mean()
    panels = {
        "How good is it?": plots.plot_scores(groups, abstaining),
        "When should it abstain?": plots.plot_thresholds(outcomes),
        "What goes wrong?": plots.plot_errors(table.group[table.exact < 1].tolist()),
        "Is 0.9 nine of ten?": plots.plot_probabilities(table),
    }
    contexts = {example.context for example in table.example}
    return {
        "head": verdict.judge_answers(run, table),
        "panels": panels,
        "texts": len(contexts),
        "questions": len(table),
        "wrong": choose_samples(outcomes, right=False),
        "right": choose_samples(outcomes, right=True),
    }


def _describe_metrics(run: RunSummary) -> dict[str, Any]:
    """Return the template's values for a run without answers."""
    name, _, baseline = verdict.main_metric(run)
    panels = {}
    if name != "loss":
        panels["How good is it?"] = plots.plot_curve(run.history, name, baseline)
    answers = {"texts": 0, "questions": 0, "wrong": [], "right": []}
    return {"head": verdict.judge_metrics(run), "panels": panels, **answers}
