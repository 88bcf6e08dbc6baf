"""Sentences on a run's figures: which errors, which threshold, whether to train longer.

The rules are few and their limits are round numbers: they say what a colleague would say at a look
at the curves. Each sentence names the figures it comes from, so that a reader can disagree; what
may be chance on so few questions is called so, and nothing is advised for it.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from detalbert.engine.history import History, Validated
from detalbert.run_page.outcomes import DECIMALS, ENOUGH, FEWEST, Bin, Outcomes, Sweep

RISE = 1.0  # points of a score at the end of a run that are worth more steps, if no noise is known
LATE = 0.85  # of the steps, after which the end of a run begins
OVERFIT = 1.1  # times the lowest held-out loss
GAP = 2.0  # times the training loss
SURE = (90, 95)  # percent of the answers given that are to be right
SHARES = (0.2, 0.4, 0.6, 0.8, 1.0)  # of the questions, answered at the thresholds of the table
HOLD_OUT = 100  # questions, of which a threshold leaves so many answered
CHANCE = 3  # standard errors, as the largest of ten distances is above two by chance
STEPS = "hyperparameters.max_steps or epochs"
MORE_DATA = "More data is the likeliest help: try twice as much."
BY_HEART = f"the model learns its training data by heart. {MORE_DATA}"
TOO_FEW = (
    "There are too few validations to say whether more steps help: lower "
    "hyperparameters.validation_period, and train with --resume never or another --output-dir (a "
    "complete run resumes and trains nothing)."
)


def describe_result(outcomes: Outcomes) -> Iterator[str]:
    """Yield how many questions are right, and what that is worth: the head of the page."""
    total = len(outcomes.examples)
    right = int(outcomes.right.sum())
    margin = outcomes.margin(outcomes.right.astype(float))
    yield (
        f"Right on {right:,} of {total:,} held-out questions ({100 * right / total:.0f} %, known "
        f"to within {margin:.1f} points)."
    )
    answerable = outcomes.answerable
    if answerable.all() or not answerable.any():
        return
    abstained = outcomes.abstained
    answers = outcomes.right[~abstained]
    abstentions = outcomes.right[abstained]
    yield (
        f"It gives {len(answers):,} answers, of which {answers.sum():,} are right, and abstains "
        f"from {len(abstentions):,} questions, of which {abstentions.sum():,} have no answer."
    )
    if abstained.all():
        yield (
            "It answers nothing at its threshold. If a higher one does not help (below), it has "
            "not learned these questions: begin with a model that has learned SQuAD."
        )
        return

    # Beside a model that does nothing, on the same questions.
    gains = outcomes.right.astype(float) - ~answerable  # [Q]
    beyond_chance = 100 * gains.mean() > outcomes.margin(gains)
    verdict = "clearly less" if beyond_chance else "and these questions cannot tell the two apart"
    yield f"To abstain always would be right on {100 * (~answerable).mean():.0f} %, {verdict}."


def describe_errors(outcomes: Outcomes) -> Iterator[str]:
    """Yield how many answers are wrong, of which kind, and how exactly that is known."""
    total = len(outcomes.examples)
    parts = [f"{group} ({count:,})" for group, count in outcomes.count_errors().items()]
    if not parts:
        yield (
            f"All {total:,} held-out questions are answered right; of others up to "
            f"{min(100, 300 / total):.1f} % may not be."
        )
        return
    wrong = int((~outcomes.right).sum())
    yield f"{wrong:,} of {total:,} held-out questions are wrong: {', '.join(parts)}."
    margin = outcomes.margin(outcomes.right.astype(float))
    if margin > 1 and total > 1:
        yield (
            f"{total:,} questions measure the share of right answers to within {margin:.1f} "
            f"points; two runs on different questions differ by up to {2**0.5 * margin:.1f} by "
            "chance, on the same questions by less. These questions chose the best step: on new "
            "ones the share may be a little lower."
        )


def describe_threshold(outcomes: Outcomes, sweep: Sweep) -> Iterator[str]:
    """Yield what the run's threshold gives, and which others would be better for what, if there are
    questions with an answer and without one.
    """
    own = sweep.at(outcomes.threshold)
    abstained = sweep.questions - sweep.given[own]
    yield (
        f"At the threshold of this run, {outcomes.threshold:.2f}, the model answers "
        f"{sweep.given[own]:,} of {sweep.questions:,} questions ({sweep.matches[own]:,} of them "
        f"right) and abstains from {abstained:,} ({sweep.rightly_abstained[own]:,} of them "
        f"rightly). Its F1 is {sweep.f1[own]:.2f}: to abstain rightly counts as a right answer, "
        "and an answer that is right in part counts in part. A higher threshold answers more "
        "questions, a lower one fewer (predict.py --threshold)."
    )
    if outcomes.answerable.all() or not outcomes.answerable.any():
        return  # to answer all or none would be best, and says nothing of other questions
    if sweep.questions < ENOUGH:
        yield (
            f"{sweep.questions:,} held-out questions are too few to choose a threshold: even "
            f"of {ENOUGH} answers the share that is right is known only to within "
            f"{_share_error(SURE[0], ENOUGH):.0f} points. Hold out at least {HOLD_OUT}."
        )
        return
    yield _describe_best(outcomes, sweep, own)
    yield from _describe_sure(sweep, own)


def _describe_best(outcomes: Outcomes, sweep: Sweep, own: int) -> str:
    """Return whether another threshold than the run's, at place `own`, is better beyond chance."""
    is_choice = sweep.printable() & (sweep.given >= ENOUGH)
    best = int(np.where(is_choice, sweep.f1, -1).argmax())
    gain = sweep.f1[best] - sweep.f1[own]
    if gain < 0.05:
        return "No other threshold has a better F1 on these questions: keep it."
    gains = outcomes.f1_at(sweep.thresholds[best]) - outcomes.f1_at(outcomes.threshold)  # [Q]
    margin = outcomes.margin(gains)
    if gain <= margin:
        return (
            f"Keep it: the best on these questions, {_place(sweep, best)} "
            f"({_counts(sweep, best)}), has {gain:.1f} points more F1, and {sweep.questions:,} "
            f"questions cannot tell {margin:.1f} from chance."
        )
    return (
        f"The best F1 on these questions is {sweep.f1[best]:.2f}, at {_place(sweep, best)} "
        f"({_counts(sweep, best)}), {gain:.1f} points more and beyond chance ({margin:.1f}): set "
        "hyperparameters.null_score_diff_threshold to it, or give it to predict.py as --threshold."
    )


def _describe_sure(sweep: Sweep, own: int) -> Iterator[str]:
    """Yield which thresholds make so many of the answers right; `own`: place of the run's."""
    if sweep.given[own] >= ENOUGH:
        percent = 100 * sweep.matches[own] / sweep.given[own]
        error = _share_error(percent, int(sweep.given[own]))
        yield (
            f"Of the answers given at the threshold of this run {percent:.0f} % are right "
            f"({_counts(sweep, own)}), known to within {error:.0f} points."
        )
    shares = sweep.matches / np.maximum(sweep.given, 1)  # [n]
    is_choice = sweep.printable() & (sweep.given >= ENOUGH)
    for percent in SURE:
        if sweep.given[own] >= ENOUGH and 100 * shares[own] >= percent:
            continue
        right_enough = is_choice & (100 * shares >= percent)
        if not right_enough.any():
            best = int(np.where(is_choice, shares, 0).argmax())
            yield (
                f"That {percent} % of the answers are right is out of reach: with at least "
                f"{ENOUGH} answers the best is {_counts(sweep, best)}."
            )
            return
        # The highest threshold, which answers most.
        place = int(right_enough.nonzero()[0][-1])
        yield (
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
    return f"threshold {_rounded_up(sweep, place)}"


def _rounded_up(sweep: Sweep, place: int) -> str:
    return f"{sweep.rounded_up()[place]:.{DECIMALS}f}"


def table_thresholds(sweep: Sweep, threshold: float) -> tuple[list[dict[str, str]], int]:
    """Return the counts at a few thresholds, and which row is that of `threshold`, the run's."""
    own = sweep.at(threshold)
    answered = sweep.given / max(sweep.questions, 1)  # [n]
    distances = np.where(sweep.printable(), 0, np.inf)  # [n], to which that of a share is added
    places = {own}
    for share in SHARES:
        place = int((distances + np.abs(answered - share)).argmin())
        if sweep.given[place] >= ENOUGH:
            places.add(place)
    rows = []
    for place in sorted(places):
        given = int(sweep.given[place])
        matches = int(sweep.matches[place])
        printed = _rounded_up(sweep, place)
        if place == own:
            printed = f"{threshold:.{DECIMALS}f}, this run's"
        rows.append(
            {
                "threshold": printed,
                "answered": f"{given:,} of {sweep.questions:,}",
                "right": f"{matches:,}",
                "wrong": f"{given - matches:,}",
                "right of the answered": f"{100 * matches / given:.0f} %" if given else "-",
                "F1 of all": f"{sweep.f1[place]:.1f}",
            }
        )
    return rows, sorted(places).index(own)


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
            f"{losses}: {BY_HEART} More steps do not help."
        )
        yield from _describe_best_step(validated, metric, lowest, outcomes)
    else:
        yield from _describe_end(validated, metric, outcomes)
        if has_gap:
            yield (
                f"The held-out loss is {losses}: the model does much better on what it has seen. "
                f"{MORE_DATA}"
            )
        elif lowest is not last:
            yield (
                f"The held-out loss is {losses}, and has been level since step {lowest.step:,}: a "
                "larger model, another rate or more data may help."
            )
        else:
            yield (
                f"The held-out loss is {losses}. Whether more data would help, one run cannot "
                "show: train on half of the data as well, and compare."
            )


def _describe_best_step(
    validated: list[Validated], metric: str, lowest: Validated, outcomes: Outcomes | None
) -> Iterator[str]:
    """Yield why the best step is another one than that of the `lowest` held-out loss."""
    best = max(validated, key=lambda point: point.metrics[metric])
    if best is lowest:
        return
    before = lowest.metrics[metric]
    after = best.metrics[metric]
    chance = ""
    if outcomes is not None and after - before <= outcomes.margin(_scores(outcomes, metric)):
        chance = ", a difference that may be chance"
    yield (
        f"{metric} was {before:.1f} at step {lowest.step:,}, and is highest at step "
        f"{best.step:,} ({after:.1f}){chance}."
    )


def _scores(outcomes: Outcomes, metric: str) -> np.ndarray:
    """Return the scores of which `metric` is the mean, float64 [Q]."""
    if metric.endswith("f1"):
        return outcomes.f1_at(outcomes.threshold)
    return outcomes.right.astype(float)


def _loss(point: Validated) -> float:
    return point.metrics["loss"]


def _describe_end(
    validated: list[Validated], metric: str, outcomes: Outcomes | None
) -> Iterator[str]:
    """Yield what the end of the run gained, beside the noise of the score."""
    border = LATE * validated[-1].step
    early = [point for point in validated if point.step <= border] or validated[:1]
    late = validated[len(early) :]
    rise = max(point.metrics[metric] for point in late) - max(
        point.metrics[metric] for point in early
    )
    change = f"{metric} changed by {rise:+.1f} points since step {early[-1].step:,}"
    is_falling = validated[-1] is min(validated, key=_loss)
    if outcomes is None:
        if rise >= RISE:
            yield f"{change}: train longer ({STEPS})."
        elif is_falling:
            yield f"{change}, and the held-out loss was still falling: train longer ({STEPS})."
        else:
            yield f"{change}: longer training gains little."
        return
    noise = outcomes.margin(_scores(outcomes, metric))
    questions = f"the noise of {len(outcomes.examples):,} held-out questions ({noise:.1f} points)"
    if rise > noise:
        yield f"{change}, more than {questions}: train longer ({STEPS})."
    elif is_falling:
        yield (
            f"{change}, within {questions}, and the held-out loss was still falling: a longer run "
            f"({STEPS}) may gain a little."
        )
    else:
        yield f"{change}, within {questions}: longer training gains little that they could show."


def describe_probabilities(scores: Mapping[str, float], bins: Sequence[Bin]) -> Iterator[str]:
    """Yield how far probabilities are from the shares that are right."""
    yield (
        "A result is an answer or an abstention. The share of results that are right differs from "
        f"their probability by {scores['calibration_error']:.3f} on average "
        f"({scores['calibration_error_raw']:.3f} before calibration)."
    )
    if not bins:
        return
    largest = max(bins, key=lambda group: group.answers)
    yield (
        f"The largest group: {largest.answers:,} results with a probability of about "
        f"{largest.probability:.2f}, of which {largest.matches:,} are right. Groups of fewer than "
        f"{FEWEST} are not drawn."
    )
    worst = max(bins, key=_standard_errors)
    if _standard_errors(worst) > CHANCE:
        yield (
            f"Beyond chance: of {worst.answers:,} results with a probability of about "
            f"{worst.probability:.2f}, {worst.matches:,} are right."
        )
        return
    chance = "In no group of similar probabilities is the difference larger than chance"
    if min(group.answers for group in bins) < ENOUGH:
        yield f"{chance}; groups of fewer than {ENOUGH} could hardly show one."
    else:
        yield f"{chance}."


def _standard_errors(group: Bin) -> float:
    """Return how far the right answers of a bin are from those that its probability promises."""
    expected = group.answers * group.probability
    deviation = (expected * (1 - group.probability)) ** 0.5
    return abs(group.matches - expected) / max(deviation, 1e-9)
