"""Answers to look at: wrong ones and right ones, each with the piece of its text that matters.

The wrong ones are those of which the model was surest, where faults of the labels come first; the
right ones are spread from the surest to the least sure.
"""

from typing import NamedTuple

import numpy as np

from detalbert.run_page.outcomes import Outcomes
from detalbert.squad.windows import Example

SHOWN = 10  # of each kind
AROUND = 90  # characters on either side of an answer
NONE = "no answer"


class Sample(NamedTuple):
    """A question as the page shows it."""

    question: str
    before: str  # text before the passage that is marked
    marked: str
    after: str
    expected: str
    given: str
    probability: float | None  # None: not known
    group: str  # of a wrong answer


def wrong_samples(outcomes: Outcomes) -> list[Sample]:
    """Return the wrong answers of which the model was surest, the surest first."""
    places = np.flatnonzero(~outcomes.right)
    surest_first = _sort(outcomes, places)
    return [_sample(outcomes, place) for place in surest_first[:SHOWN]]


def right_samples(outcomes: Outcomes) -> list[Sample]:
    """Return right answers, evenly from the surest to the least sure."""
    places = np.flatnonzero(outcomes.right)
    order = _sort(outcomes, places)
    if len(order) > SHOWN:
        chosen = np.linspace(0, len(order) - 1, SHOWN).round().astype(int)
        order = [order[number] for number in chosen]
    return [_sample(outcomes, place) for place in order]


def _sort(outcomes: Outcomes, places: np.ndarray) -> list[int]:
    """Return questions [n], the one of which the model was surest first."""
    return sorted(places.tolist(), key=lambda place: -_sureness(outcomes, place))


def _sureness(outcomes: Outcomes, place: int) -> float:
    """Return how sure the model was: its probability, or without one the distance of the null odds
    from the threshold.
    """
    if outcomes.probabilities is None:
        return abs(float(outcomes.odds[place]) - outcomes.threshold)
    return float(outcomes.probabilities[place])


def _sample(outcomes: Outcomes, place: int) -> Sample:
    example = outcomes.examples[place]
    prediction = outcomes.answers.predictions[example.id]
    expected = list(dict.fromkeys(text for text, _ in example.answers or ()))
    begin, end = _passage(example, prediction)
    context = example.context
    # Without an answer the text's beginning stands for it; whole words alone are shown.
    first = context.rfind(" ", 0, max(0, begin - AROUND)) + 1
    last = context.find(" ", end + AROUND)
    if last < 0:
        last = len(context)
    probability = None
    if outcomes.probabilities is not None:
        probability = float(outcomes.probabilities[place])
    return Sample(
        question=example.question,
        before="… " * (first > 0) + context[first:begin],
        marked=context[begin:end],
        after=context[end:last] + " …" * (last < len(context)),
        expected=" / ".join(expected) or NONE,
        given=prediction or NONE,
        probability=probability,
        group=outcomes.group(place),
    )


def _passage(example: Example, prediction: str) -> tuple[int, int]:
    """Return the characters to mark: the expected answer, else the answer given, else none."""
    if example.answers:
        text, begin = example.answers[0]
        return begin, begin + len(text)
    text = prediction.strip()
    begin = max(0, example.context.find(text))
    return begin, begin + len(text)
