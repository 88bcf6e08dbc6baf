"""Sentences and a table on thresholds: what the run's gives, and what others would trade for it.

A score can be the best at one threshold; whether fewer wrong answers are worth fewer right ones is
for the reader to say, so that both are counted.
"""

from collections.abc import Iterator

import numpy as np

from detalbert.run_page.outcomes import DECIMALS, ENOUGH, FEWEST, Outcomes, Sweep

SHARES = (0.2, 0.4, 0.6, 0.8, 1.0)  # of the questions, answered at the thresholds of the table
HOLD_OUT = 100  # questions that may choose a threshold
DIRECTION = (
    'The threshold is the lead that "no answer" may have over an answer that is given all the '
    "same: a higher threshold answers more questions, a lower, stricter one fewer (predict.py "
    "--threshold; the margin that it prints is the same number with the other sign)."
)


def describe_threshold(outcomes: Outcomes, sweep: Sweep) -> Iterator[str]:
    """Yield what the run's threshold gives, and what others would, if there are questions with an
    answer and without one.
    """
    own = sweep.at(outcomes.threshold)
    share = outcomes.share_at(outcomes.threshold)
    yield (
        f"At the threshold of this run, {outcomes.threshold:.2f}, the model answers "
        f"{share.total:,} of {sweep.questions:,} questions ({share.matches:,} of them right) and "
        f"abstains from {sweep.questions - share.total:,} "
        f"({sweep.rightly_abstained[own]:,} of them rightly). {DIRECTION}"
    )
    if outcomes.answerable.all() or not outcomes.answerable.any():
        yield "All held-out questions have an answer, or none has: they cannot say when to abstain."
        return
    if sweep.questions < HOLD_OUT:
        yield (
            f"{sweep.questions:,} held-out questions are too few to choose another by: "
            f"{share.matches:,} of {share.total:,} answers right mean {share.interval} at 95 % "
            f"confidence. Hold out {HOLD_OUT} or more, on as many texts as you can: 90 of 100 mean "
            "83 to 94 %."
        )
    else:
        yield _describe_best(outcomes, sweep, own)
    stricter = _halving(sweep, own)
    if stricter < own:
        yield f"For at most half the wrong answers: {_trade(sweep, stricter, own)}."
    if own < len(sweep.given) - 1:
        yield f"To answer every question: {_trade(sweep, len(sweep.given) - 1, own)}."


def _describe_best(outcomes: Outcomes, sweep: Sweep, own: int) -> str:
    """Return whether another threshold than the run's, at place `own`, is better beyond chance."""
    is_choice = sweep.printable() & (sweep.given >= ENOUGH)
    best = int(np.where(is_choice, sweep.f1, -1).argmax())
    gains = outcomes.f1_at(sweep.thresholds[best]) - outcomes.f1_at(outcomes.threshold)  # [Q]
    margin = outcomes.margin(gains)
    if 100 * gains.mean() <= margin:
        return "By F1 keep it: on these questions no other is better beyond chance."
    return (
        f"The best F1 on these questions is {sweep.f1[best]:.2f}, {100 * gains.mean():.1f} points "
        f"more and beyond chance ({margin:.1f}): {_trade(sweep, best, own)}. Set "
        "hyperparameters.null_score_diff_threshold to it, or give it to predict.py as --threshold."
    )


def _halving(sweep: Sweep, own: int) -> int:
    """Return the place of the highest threshold with at most half the wrong answers of `own`; `own`
    if there is none.
    """
    wrong = sweep.given - sweep.matches
    is_less = (wrong < wrong[own]) & (2 * wrong <= wrong[own])
    is_choice = sweep.printable() & (sweep.given >= FEWEST) & is_less
    return int(max(is_choice[:own].nonzero()[0], default=own))


def _trade(sweep: Sweep, place: int, own: int) -> str:
    """Return what a threshold gives in place of the run's, at place `own`."""
    wrong = sweep.given - sweep.matches
    return (
        f"threshold {_name(sweep, place, own)}, with {sweep.matches[place]:,} right answers in "
        f"place of {sweep.matches[own]:,}, and {wrong[place]:,} wrong in place of "
        f"{wrong[own]:,}"
    )


def _name(sweep: Sweep, place: int, own: int) -> str:
    """Return a threshold and what it does beside that of the run, at place `own`."""
    direction = "stricter" if place < own else "answers more"
    return f"{sweep.rounded_up()[place]:.{DECIMALS}f} ({direction})"


def table_thresholds(outcomes: Outcomes, sweep: Sweep) -> tuple[list[dict[str, str]], int]:
    """Return the counts at a few thresholds on either side of the run's, and which row is its."""
    own = sweep.at(outcomes.threshold)
    answered = sweep.given / max(sweep.questions, 1)  # [n]
    # Of thresholds that can be printed, and of enough answers, the nearest to each share.
    is_row = sweep.printable() & (sweep.given >= FEWEST)
    places = {own, _halving(sweep, own)}
    if is_row.any():
        for aim in SHARES:
            places.add(int(np.where(is_row, np.abs(answered - aim), np.inf).argmin()))

    rows = []
    for place in sorted(places):
        share = outcomes.share_at(sweep.thresholds[place])
        name = f"{outcomes.threshold:.{DECIMALS}f} (this run)"
        rows.append(
            {
                "threshold": name if place == own else _name(sweep, place, own),
                "answers": f"{share.total:,}",
                "right": f"{share.matches:,}",
                "wrong": f"{share.total - share.matches:,}",
                "right of the answers": f"{share.percent} ({share.interval})",
                "F1 of all": f"{sweep.f1[place]:.1f}",
            }
        )
    return rows, sorted(places).index(own)
