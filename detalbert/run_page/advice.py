"""Sentences on a run's figures: which errors, whether to train longer or on more data.

The rules are few and their limits are round numbers: they say what a colleague would say at a look
at the curves. Each sentence names the figures it comes from, so that a reader can disagree; what
may be chance on so few questions is called so, and nothing is advised for it.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from detalbert.engine.history import History, Validated
from detalbert.run_page.outcomes import ENOUGH, FEWEST, Bin, Outcomes

RISE = 1.0  # points of a score at the end of a run that are worth more steps, if no noise is known
LATE = 0.85  # of the steps, after which the end of a run begins
OVERFIT = 1.1  # times the lowest held-out loss
GAP = 2.0  # times the training loss
CHANCE = 3  # standard errors, as the largest of ten distances is above two by chance
VALIDATIONS = 10  # of a run, which show whether its scores still rise
STEPS = "hyperparameters.max_steps or epochs"
MORE_DATA = "More data is the likeliest help: try twice as much."
BEGIN_WITH = "begin with a model that has learned SQuAD (configs/questions.yaml names one)"
NO_BETTER = (
    f"not better beyond chance. On these questions it is of no use yet: {BEGIN_WITH}, or with more "
    "questions."
)
NO_FAULT = (
    "In no group of results of similar probability, a tenth wide, is the difference larger than "
    f"chance; groups of fewer than {ENOUGH} could hardly show one, and of fewer than {FEWEST} are "
    "not drawn."
)
HOLD_FOR = (
    "The scores hold for questions and texts like the held-out ones. Questions on one text are "
    "often right or wrong together: the intervals take account of it. These questions chose the "
    "best step: on new ones the share may be a little lower."
)


def describe_result(outcomes: Outcomes) -> Iterator[str]:
    """Yield how many results are right, and what that is worth: the head of the page."""
    everything = outcomes.share()
    yield (
        f"{everything.matches:,} of {everything.total:,} results on held-out questions are right: "
        f"{everything.percent}, {everything.interval} at 95 % confidence."
    )
    answerable = outcomes.answerable
    if answerable.all() or not answerable.any():
        return
    answers = outcomes.right[~outcomes.abstained]
    abstentions = outcomes.right[outcomes.abstained]
    yield (
        f"A result is an answer or an abstention: of {len(answers):,} answers {answers.sum():,} "
        f"are right, of {len(abstentions):,} abstentions {abstentions.sum():,}."
    )
    if outcomes.abstained.all():
        yield (
            "It answers nothing at its threshold. If a higher one does not help (below), it has "
            f"not learned these questions: {BEGIN_WITH}."
        )
        return

    # Beside a model that does nothing, on the same questions.
    gains = outcomes.right.astype(float) - ~answerable  # [Q]
    beyond_chance = 100 * gains.mean() > outcomes.margin(gains)
    verdict = "clearly better." if beyond_chance else NO_BETTER
    yield (
        f"A model that always abstains would be right on {100 * (~answerable).mean():.0f} %: this "
        f"one is {verdict}"
    )


def describe_errors(outcomes: Outcomes) -> Iterator[str]:
    """Yield how many results are wrong, of which kind, and what the shares hold for."""
    total = len(outcomes.examples)
    parts = [f"{group} ({count:,})" for group, count in outcomes.count_errors().items()]
    if parts:
        yield f"{(~outcomes.right).sum():,} of {total:,} results are wrong: {', '.join(parts)}."
    else:
        yield f"All {total:,} results are right."
    kinds = {"with": outcomes.answerable, "without": ~outcomes.answerable}
    for kind, chosen in kinds.items():
        share = outcomes.share(chosen)
        if 0 < share.total < total:
            yield (
                f"Of {share.total:,} questions {kind} an answer {share.matches:,} are right: "
                f"{share.percent}, {share.interval} at 95 % confidence."
            )
    yield HOLD_FOR


def describe_training(
    history: History, metric: str, outcomes: Outcomes | None = None, period: int | None = None
) -> Iterator[str]:
    """Yield whether more steps would help, and how the losses compare, by the curves.

    Args:
        history: of the run.
        metric: a score in percent of which more is better.
        outcomes: whose number is the noise of the score; None: not known.
        period: the run's `validation_period`, in steps; None: an epoch.
    """
    validated = [point for point in history.validations if "loss" in point.metrics]
    is_long = len(validated) >= 3
    if not is_long:
        steps = history.reports[-1].step if history.reports else 0
        yield (
            f"Too few validations ({len(validated)}) to say whether more steps help: set "
            f"hyperparameters.validation_period to {max(1, steps // VALIDATIONS):,} (now "
            f"{period or 'an epoch'}), and train into another --output-dir."
        )
    if not validated or not history.reports:
        return

    # A single report is a few steps: its mean may be far off.
    tail = history.reports[-max(2, len(history.reports) // 10) :]
    training = sum(report.loss for report in tail) / len(tail)
    last = _loss(validated[-1])
    lowest = min(validated, key=_loss)
    losses = f"{last:.2f} at the end, in training about {training:.2g}"
    if last > OVERFIT * _loss(lowest):
        yield (
            f"The held-out loss was lowest at step {lowest.step:,} ({_loss(lowest):.2f}) and is "
            f"{losses}: the model learns its training data by heart. {MORE_DATA} More steps do not "
            "help."
        )
        return
    if is_long:
        yield _describe_end(validated, metric, outcomes)
    if last > GAP * training:
        verdict = f"the model does much better on what it has seen. {MORE_DATA}"
    elif lowest is validated[-1]:
        verdict = "no sign that the model learns its training data by heart."
    else:
        verdict = (
            f"level since step {lowest.step:,}. A larger model, another rate or more data may help."
        )
    yield f"The held-out loss is {losses}: {verdict}"


def _scores(outcomes: Outcomes, metric: str) -> np.ndarray:
    """Return the scores of which `metric` is the mean, float64 [Q]."""
    if metric.endswith("f1"):
        return outcomes.f1_at(outcomes.threshold)
    return outcomes.right.astype(float)


def _loss(point: Validated) -> float:
    return point.metrics["loss"]


def _describe_end(validated: list[Validated], metric: str, outcomes: Outcomes | None) -> str:
    """Return what the end of the run gained, beside the noise of the score."""
    border = LATE * validated[-1].step
    early = [point for point in validated if point.step <= border] or validated[:1]
    late = validated[len(early) :]
    rise = max(point.metrics[metric] for point in late) - max(
        point.metrics[metric] for point in early
    )
    change = (
        f"The best {metric} after step {early[-1].step:,} is {rise:+.1f} points from the best "
        "before"
    )
    noise = RISE if outcomes is None else outcomes.margin(_scores(outcomes, metric))
    if rise > noise:
        return f"{change}, more than by chance ({noise:.1f}): train longer ({STEPS})."
    change += f", which may be chance (up to {noise:.1f} points)"
    if validated[-1] is min(validated, key=_loss):
        return (
            f"{change}, and the held-out loss was still falling: a longer run ({STEPS}) may gain a "
            "little."
        )
    return f"{change}: longer training gains little that these questions could show."


def describe_probabilities(
    scores: Mapping[str, float], probabilities: np.ndarray, right: np.ndarray, bins: Sequence[Bin]
) -> Iterator[str]:
    """Yield how far probabilities are from the shares that are right; both arrays are [Q]."""
    yield (
        "The share of results that are right differs from their probability by "
        f"{scores['calibration_error']:.3f} on average ({scores['calibration_error_raw']:.3f} "
        "before calibration)."
    )
    if not bins:
        return
    border = max(bins, key=lambda group: group.answers).lowest
    upper = right[probabilities >= border]
    lower = right[probabilities < border]
    yield (
        f"{(~upper).sum():,} of {len(upper):,} results with a probability of at least {border:.1f} "
        f"are wrong, and {(~lower).sum():,} of {len(lower):,} below it."
    )
    worst = max(bins, key=_standard_errors)
    if _standard_errors(worst) > CHANCE:
        yield (
            f"Beyond chance: of {worst.answers:,} results with a probability from "
            f"{worst.lowest:.1f} on, on average {worst.probability:.2f}, {worst.matches:,} are "
            "right."
        )
    else:
        yield NO_FAULT


def _standard_errors(group: Bin) -> float:
    """Return how far the right answers of a bin are from those that its probability promises."""
    expected = group.answers * group.probability
    deviation = (expected * (1 - group.probability)) ** 0.5
    return abs(group.matches - expected) / max(deviation, 1e-9)
