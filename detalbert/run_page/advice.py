"""Sentences on a run's figures: which errors, which threshold, whether to train longer.

The rules are few and their limits are round numbers: they say what a colleague would say at a look
at the curves. Each sentence names the figures it comes from, so that a reader can disagree.
"""

from collections.abc import Iterator, Mapping, Sequence

from detalbert.engine.history import History, Validated
from detalbert.run_page.outcomes import Bin, Outcomes, Sweep, margin_of_error

RISE = 1.0  # points of F1 over the last half of a run that are worth more steps
OVERFIT = 1.1  # times the lowest held-out loss
GAP = 2.0  # times the training loss
LEAST = 5  # percent of the questions that a threshold is to leave answered
SURE = (90, 95)  # percent of the answers given that are to be right


def describe_errors(outcomes: Outcomes) -> Iterator[str]:
    """Yield how many answers are wrong, of which kind, and how exactly that is known."""
    total = len(outcomes.examples)
    parts = [f"{group} ({count:,})" for group, count in outcomes.count_errors().items()]
    if not parts:
        yield f"All {total:,} held-out questions are answered right."
        return
    wrong = int((~outcomes.right).sum())
    yield f"{wrong:,} of {total:,} held-out questions are wrong: {', '.join(parts)}."
    margin = margin_of_error(outcomes.right.astype(float))
    if margin > 1 and total > 1:
        yield (
            f"{total:,} questions measure the share of right answers to within {margin:.1f} "
            "points: two runs that differ by less are the same."
        )


def describe_threshold(sweep: Sweep, threshold: float, has_both_kinds: bool) -> Iterator[str]:
    """Yield what the run's threshold gives, and which others would be better for what, if there are
    questions with an answer and without one.
    """
    own = sweep.at(threshold)
    best = int(sweep.f1.argmax())
    yield (
        f"At the threshold of this run, {threshold:.2f}, the model answers "
        f"{sweep.answered[own]:.0f} % of the questions, {sweep.right[own]:.0f} % of them right, "
        f"and has an F1 of {sweep.f1[own]:.2f}."
    )
    if not has_both_kinds:
        return  # to answer all or none would be best, and says nothing of other questions
    if sweep.f1[best] > sweep.f1[own] + 0.05:
        yield (
            f"The best F1 on these questions is {sweep.f1[best]:.2f}, at {_place(sweep, best)}: "
            "set hyperparameters.null_score_diff_threshold to it, or give it to predict.py as "
            "--threshold."
        )
    for percent in SURE:
        if sweep.right[own] < percent:
            yield _describe_sure(sweep, percent)


def _describe_sure(sweep: Sweep, percent: int) -> str:
    """Return which threshold makes so many of the answers right."""
    enough = (sweep.right >= percent) & (sweep.answered >= LEAST)
    if not enough.any():
        return (
            f"No threshold makes {percent} % of the answers right and leaves {LEAST} % of the "
            "questions answered."
        )
    # The highest threshold, which answers most.
    place = int(enough.nonzero()[0][-1])
    return (
        f"For {percent} % of the answers to be right, take {_place(sweep, place)}: the model then "
        f"answers {sweep.answered[place]:.0f} % of the questions."
    )


def _place(sweep: Sweep, place: int) -> str:
    return f"threshold {sweep.thresholds[place]:.4g}"


def describe_training(history: History, metric: str) -> Iterator[str]:
    """Yield whether more steps or more data would help, by the curves; `metric`: a score in percent
    of which more is better.
    """
    validated = [point for point in history.validations if "loss" in point.metrics]
    if len(validated) < 3 or len(history.reports) < 3:
        yield "There are too few validations to say more: lower hyperparameters.validation_period."
        return
    lowest = min(validated, key=_loss)
    last = validated[-1]
    tail = history.reports[-max(1, len(history.reports) // 10) :]
    training = sum(report.loss for report in tail) / len(tail)
    losses = f"{_loss(last):.2f} at the end, in training {training:.2f}"
    if _loss(last) > OVERFIT * _loss(lowest):
        yield (
            f"The held-out loss was lowest at step {lowest.step:,} ({_loss(lowest):.2f}) and is "
            f"{losses}: the model learns its training data by heart. More data helps most; more "
            "steps do not."
        )
        return

    # Without a rise of the loss the score says whether the run ended too early.
    rise = _late_rise(validated, metric)
    if rise >= RISE:
        yield (
            f"{metric} rose by {rise:.1f} points over the last half of the run: train longer "
            "(hyperparameters.max_steps or epochs)."
        )
    elif _loss(last) > GAP * training:
        yield (
            f"The held-out loss is {losses}: the model does much better on what it has seen. More "
            "data helps most."
        )
    elif lowest is last:
        yield (
            f"The held-out loss is {losses}, and was still falling: train longer, or with more "
            "data."
        )
    else:
        yield (
            f"The held-out loss is {losses}, and has been level since step {lowest.step:,}: a "
            "larger model, another rate or more data may help; more steps alone will not."
        )


def _loss(point: Validated) -> float:
    return point.metrics["loss"]


def _late_rise(validated: list[Validated], metric: str) -> float:
    """Return the points of a score that the last half of the validations gained."""
    scores = [point.metrics[metric] for point in validated]
    half = len(scores) // 2
    return max(scores[half:]) - max(scores[:half])


def describe_probabilities(scores: Mapping[str, float], bins: Sequence[Bin]) -> Iterator[str]:
    """Yield how far probabilities are from the shares that are right."""
    yield (
        "The share of answers that is right differs from their probability by "
        f"{scores['calibration_error']:.3f} on average "
        f"({scores['calibration_error_raw']:.3f} before calibration)."
    )
    if bins:
        worst = max(bins, key=lambda group: abs(group.probability - group.right))
        yield (
            f"The largest distance: of {worst.answers:,} answers with a probability of about "
            f"{worst.probability:.2f}, a share of {worst.right:.2f} is right."
        )
