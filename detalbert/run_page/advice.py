"""Sentences on a run's figures: which errors, which threshold, whether to train longer.

The rules are few and their limits are round numbers: they say what a colleague would say at a look
at the curves. Each sentence names the figures it comes from, so that a reader can disagree.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from detalbert.engine.history import History, Validated
from detalbert.run_page.outcomes import Bin, Outcomes, Sweep, margin_of_error

RISE = 1.0  # points of a score at the end of a run that are worth more steps, if no noise is known
OVERFIT = 1.1  # times the lowest held-out loss
GAP = 2.0  # times the training loss
SURE = (90, 95)  # percent of the answers given that are to be right
ENOUGH = 30  # answers whose share that is right may decide: that of 90 % is known to 11 points
HOLD_OUT = 100  # questions, of which a threshold leaves so many answered
CHANCE = 3  # standard errors, as the largest of ten distances is above two by chance
STEPS = "hyperparameters.max_steps or epochs"
BY_HEART = "the model learns its training data by heart. More data helps most."
TOO_FEW = (
    "There are too few validations to say whether more steps help: lower "
    "hyperparameters.validation_period, and train with --resume never or another --output-dir (a "
    "complete run resumes and trains nothing)."
)


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
            "points: a smaller difference between two runs may be chance."
        )


def describe_threshold(sweep: Sweep, threshold: float, has_both_kinds: bool) -> Iterator[str]:
    """Yield what the run's threshold gives, and which others would be better for what, if there are
    questions with an answer and without one.
    """
    own = sweep.at(threshold)
    abstained = sweep.questions - sweep.given[own]
    yield (
        f"At the threshold of this run, {threshold:.2f}, the model answers {sweep.given[own]:,} of "
        f"{sweep.questions:,} questions ({sweep.matches[own]:,} of them right) and abstains from "
        f"{abstained:,} ({sweep.rightly_abstained[own]:,} of them rightly). Its F1 is "
        f"{sweep.f1[own]:.2f}: to abstain rightly counts as a right answer, and an answer that is "
        "right in part counts in part."
    )
    if not has_both_kinds:
        return  # to answer all or none would be best, and says nothing of other questions
    if sweep.questions < ENOUGH:
        yield (
            f"{sweep.questions:,} held-out questions are too few to choose a threshold: even "
            f"of {ENOUGH} answers the share that is right is known only to within "
            f"{_share_error(SURE[0], ENOUGH):.0f} points. Hold out at least {HOLD_OUT}."
        )
        return
    best = int(np.where(sweep.given >= ENOUGH, sweep.f1, -1).argmax())
    if sweep.f1[best] > sweep.f1[own] + 0.05:
        yield (
            f"The best F1 on these questions is {sweep.f1[best]:.2f}, at {_place(sweep, best)} "
            f"({_counts(sweep, best)}): set hyperparameters.null_score_diff_threshold to it, or "
            "give it to predict.py as --threshold."
        )
    for percent in SURE:
        yield _describe_sure(sweep, percent, own)


def _describe_sure(sweep: Sweep, percent: int, own: int) -> str:
    """Return which threshold makes so many of the answers right; `own`: place of the run's."""
    enough = (100 * sweep.matches >= percent * sweep.given) & (sweep.given >= ENOUGH)
    if enough[own]:
        return f"{percent} % already holds at the threshold of this run ({_counts(sweep, own)})."
    if not enough.any():
        return (
            f"No threshold makes {percent} % of the answers right and gives at least {ENOUGH} "
            f"answers, of which the share is known to within "
            f"{_share_error(percent, ENOUGH):.0f} points."
        )
    # The highest threshold, which answers most.
    place = int(enough.nonzero()[0][-1])
    return (
        f"For {percent} % of the answers to be right, take {_place(sweep, place)}: "
        f"{_counts(sweep, place)} on these questions, a share that is known to within "
        f"{_share_error(percent, int(sweep.given[place])):.0f} points."
    )


def _counts(sweep: Sweep, place: int) -> str:
    return f"{sweep.matches[place]:,} of {sweep.given[place]:,} answers right"


def _share_error(percent: float, answers: int) -> float:
    """Return half the width of the 95 % interval of a share of answers, in points."""
    return 1.96 * (percent * (100 - percent) / answers) ** 0.5


def _place(sweep: Sweep, place: int) -> str:
    # Rounded up, as a lower one would leave out the last of the answers that are counted.
    return f"threshold {np.ceil(1000 * sweep.thresholds[place]) / 1000:.3f}"


def describe_training(
    history: History, metric: str, outcomes: Outcomes | None = None
) -> Iterator[str]:
    """Yield whether more steps or more data would help, by the curves.

    Args:
        history: of the run.
        metric: a score in percent of which more is better.
        outcomes: whose number is the noise of the score; None: not known.
    """
    validated = [point for point in history.validations if "loss" in point.metrics]
    if not validated or not history.reports:
        yield TOO_FEW
        return
    last = validated[-1]
    tail = history.reports[-max(1, len(history.reports) // 10) :]
    training = sum(report.loss for report in tail) / len(tail)
    losses = f"{_loss(last):.2f} at the end, in training {training:.2g}"
    lowest = min(validated, key=_loss)
    has_gap = _loss(last) > GAP * training
    if len(validated) < 3:
        if has_gap:
            yield f"The held-out loss is {losses}: {BY_HEART}"
        yield TOO_FEW
    elif _loss(last) > OVERFIT * _loss(lowest):
        yield (
            f"The held-out loss was lowest at step {lowest.step:,} ({_loss(lowest):.2f}) and is "
            f"{losses}: {BY_HEART} More steps do not."
        )
    else:
        yield from _describe_end(validated, metric, outcomes)
        if has_gap:
            yield (
                f"The held-out loss is {losses}: the model does much better on what it has seen. "
                "More data helps most."
            )
        elif lowest is not last:
            yield (
                f"The held-out loss is {losses}, and has been level since step {lowest.step:,}: a "
                "larger model, another rate or more data may help."
            )


def _loss(point: Validated) -> float:
    return point.metrics["loss"]


def _describe_end(
    validated: list[Validated], metric: str, outcomes: Outcomes | None
) -> Iterator[str]:
    """Yield what the last fifth of the validations gained, beside the noise of the score."""
    late = max(1, len(validated) // 5)
    scores = [point.metrics[metric] for point in validated]
    rise = max(scores[-late:]) - max(scores[:-late])
    change = f"{metric} changed by {rise:+.1f} points since step {validated[-late - 1].step:,}"
    if outcomes is None:
        if rise >= RISE:
            yield f"{change}: train longer ({STEPS})."
        elif validated[-1] is min(validated, key=_loss):
            yield f"{change}, and the held-out loss was still falling: train longer ({STEPS})."
        else:
            yield f"{change}: longer training gains little."
        return
    noise = margin_of_error(outcomes.right.astype(float))
    questions = f"the noise of {len(outcomes.examples):,} held-out questions ({noise:.1f} points)"
    if rise > noise:
        yield f"{change}, more than {questions}: train longer ({STEPS})."
        return
    wrong = int((~outcomes.right).sum())
    yield (
        f"{change}, within {questions}: longer training gains little that they could show. What "
        f"remains: {wrong:,} wrong answers."
    )


def describe_probabilities(scores: Mapping[str, float], bins: Sequence[Bin]) -> Iterator[str]:
    """Yield how far probabilities are from the shares that are right."""
    yield (
        "The share of answers that is right differs from their probability by "
        f"{scores['calibration_error']:.3f} on average "
        f"({scores['calibration_error_raw']:.3f} before calibration)."
    )
    if not bins:
        return
    worst = max(bins, key=_standard_errors)
    if _standard_errors(worst) > CHANCE:
        yield (
            f"Beyond chance: of {worst.answers:,} answers with a probability of about "
            f"{worst.probability:.2f}, {worst.matches:,} are right."
        )
    else:
        yield "In no group of similar probabilities is the difference larger than chance."


def _standard_errors(group: Bin) -> float:
    """Return how far the right answers of a bin are from those that its probability promises."""
    expected = group.answers * group.probability
    deviation = (expected * (1 - group.probability)) ** 0.5
    return abs(group.matches - expected) / max(deviation, 1e-9)
