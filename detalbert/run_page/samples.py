"""Results to look at: wrong ones and right ones, each with the piece of its text that matters.

The wrong ones are those of which the model was surest, where faults of the labels come first, and
the surest of each kind; the right ones are spread from the surest to the least sure.
"""

import re
from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from detalbert.run_page.outcomes import Outcomes
from detalbert.squad.windows import Example

SHOWN = 10  # of each kind
AROUND = 90  # characters on either side of an answer, at least
SENTENCE_END = re.compile(r"[.!?]\s+|[\n。！？]")
LONGEST = 3_000  # characters of a text that is shown as a whole, too: twenty must fit a page
NONE = "no answer"


class Passage(NamedTuple):
    """A piece of a text."""

    text: str
    marks: str  # "expected", "given", both with a space between, or ""


class Sample(NamedTuple):
    """A question as the page shows it."""

    question: str
    passages: list[Passage]  # of its text, in order
    expected: str
    given: str
    probability: float | None  # None: not known
    group: str  # of a wrong answer
    context: str  # the whole text, if the passages are less and it is short enough, or ""


def wrong_samples(outcomes: Outcomes) -> list[Sample]:
    """Return the wrong results of which the model was surest, of each kind at least one."""
    surest_first = _sort(outcomes, np.flatnonzero(~outcomes.right))
    # The last of a group in the reversed order is its surest.
    by_group = {outcomes.group(place): place for place in reversed(surest_first)}
    chosen = set(by_group.values())
    for place in surest_first:
        if len(chosen) < SHOWN:
            chosen.add(place)
    return [_sample(outcomes, place) for place in surest_first if place in chosen]


def right_samples(outcomes: Outcomes) -> list[Sample]:
    """Return right results, evenly from the surest to the least sure."""
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
    probability = None
    if outcomes.probabilities is not None:
        probability = float(outcomes.probabilities[place])
    passages = _passages(example.context, _spans(example, prediction))
    is_cut = "".join(passage.text for passage in passages) != example.context
    return Sample(
        question=example.question,
        passages=passages,
        expected=" / ".join(expected) or NONE,
        given=prediction or NONE,
        probability=probability,
        group=outcomes.group(place),
        context=example.context if is_cut and len(example.context) <= LONGEST else "",
    )


def _spans(example: Example, prediction: str) -> dict[str, tuple[int, int]]:
    """Return the characters of the expected answer and of the one given, if there are any."""
    spans = {}
    expected = 0
    if example.answers:
        text, expected = example.answers[0]
        spans["expected"] = (expected, expected + len(text))
    # Of the places that have the text of the answer given, the nearest to the expected one.
    text = prediction.strip()
    places = [match.start() for match in re.finditer(re.escape(text), example.context)]
    if text and places:
        begin = min(places, key=lambda place: abs(place - expected))
        spans["given"] = (begin, begin + len(text))
    return spans


def _passages(context: str, spans: Mapping[str, tuple[int, int]]) -> list[Passage]:
    """Cut a text where marks begin and end. Without an answer its beginning stands for it."""
    edges = [edge for span in spans.values() for edge in span] or [0]
    first = _first(context, border=min(edges) - AROUND)
    # Whole words alone are shown.
    last = context.find(" ", max(edges) + AROUND)
    if last < 0:
        last = len(context)
    passages = []
    for begin, end in pairwise(sorted({first, *edges, last})):
        marks = [name for name, span in spans.items() if span[0] <= begin and end <= span[1]]
        passages.append(Passage(text=context[begin:end], marks=" ".join(marks)))
    if first > 0:
        passages.insert(0, Passage(text="… ", marks=""))
    if last < len(context):
        passages.append(Passage(text=" …", marks=""))
    return passages


def _first(context: str, border: int) -> int:
    """Return where a passage begins, before `border`: at the text's start or at a sentence's, which
    have the subject, if one is near, else at a word.
    """
    near = border - 2 * AROUND
    if near <= 0:
        return 0
    first = context.rfind(" ", 0, border) + 1
    for match in SENTENCE_END.finditer(context, near, border):
        first = match.end()
    return first
