"""The page of a run: one HTML file with a verdict, scores, curves and wrong answers.

It is what a person opens after a training. It needs no network and no other file, so it can be
sent; a task stores one beside each validated checkpoint.
"""

from pathlib import Path
from typing import Any

import jinja2

from detalbert.run_page import plots
from detalbert.run_page.outcomes import Outcomes, interval
from detalbert.run_page.run import RunSummary
from detalbert.run_page.verdict import judge_answers, judge_metrics, main_metric

SHOWN = 20  # wrong answers
# A name that the template misspells is an error, not "".
TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=jinja2.StrictUndefined,
)


def render_report(run: RunSummary) -> str:
    """Return the page of a run."""
    answers: dict[str, Any] = {}
    curves = {"Does it still learn?": plots.plot_curve(run.history, "loss")}
    if run.outcomes is not None:
        head = judge_answers(run, run.outcomes.table)
        answers = _describe_answers(run.outcomes)
        curves["When should it abstain?"] = plots.plot_thresholds(run.outcomes)
        curves["Is 0.9 nine of ten?"] = plots.plot_probabilities(run.outcomes.table)
    else:
        head = judge_metrics(run)
        metric, _, baseline = main_metric(run)
        if metric != "loss":
            curves["How good is it?"] = plots.plot_curve(run.history, metric, baseline)
    return TEMPLATES.get_template("page.html.j2").render(
        run=run,
        head=head,
        curves=curves,
        answers=answers,
    )


def _describe_answers(outcomes: Outcomes) -> dict[str, Any]:
    """Return what the template shows of answers."""
    table = outcomes.table
    groups = {
        "F1": table.f1,
        "exact": table.exact,
    }
    if table.answerable.nunique() == 2:
        groups["with an answer"] = table.exact[table.answerable]
        groups["without one"] = table.exact[~table.answerable]
    texts = {example.context for example in table.example}
    wrong = table[table.exact < 1]
    return {
        "texts": len(texts),
        "language": outcomes.language,
        "questions": len(table),
        "scores": {name: interval(scores) for name, scores in groups.items()},
        "abstaining": 100 * (~table.answerable).mean(),
        "errors": wrong.group.value_counts().to_dict(),
        "is_calibrated": table.probability.notna().any(),
        "wrong": choose_errors(outcomes),
    }


def choose_errors(outcomes: Outcomes) -> list[dict[str, Any]]:
    """Return the surest wrong results, where faults of the labels come first."""
    table = outcomes.table
    distances = (table.odds - outcomes.threshold).abs()
    sureness = table.probability.fillna(distances)
    ranks = sureness.sort_values(ascending=False, kind="stable")
    ordered = table.loc[ranks.index]
    wrong = ordered[ordered.exact < 1]
    return wrong.head(SHOWN).to_dict("records")
