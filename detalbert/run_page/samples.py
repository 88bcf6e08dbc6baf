"""Results to look at, each with the sentences of its text that have the answers.

The wrong ones are those of which the model was surest, where faults of the labels come first.
"""

from typing import Any, NamedTuple

import numpy as np

from detalbert.run_page.outcomes import Outcomes

SHOWN = 20  # of each kind
AROUND = 200  # characters on either side of an answer, at most


class Excerpt(NamedTuple):
    """An answer in its sentence."""

    before: str
    answer: str
    after: str


def choose_samples(outcomes: Outcomes, right: bool) -> list[dict[str, Any]]:
    """Return the surest wrong results, or right ones evenly from the surest to the least sure."""
    table = outcomes.table
    distances = (table.odds - outcomes.threshold).abs()
    sureness = table.probability.fillna(distances)
    order = np.argsort(-sureness, kind="stable")
    ordered = table.iloc[order]
    chosen = ordered[(ordered.exact == 1) == right]
    if right and len(chosen) > SHOWN:
        places = np.linspace(0, len(chosen) - 1, SHOWN)
        chosen = chosen.iloc[places.round().astype(int)]
    samples = chosen.head(SHOWN).to_dict("records")
    for sample in samples:
        example = sample["example"]
        text, start = (example.answers or [("", 0)])[0]
        prediction = sample["prediction"]
        sample["expected"] = cut_sentence(example.context, text, start)
        sample["given"] = cut_sentence(
            example.context,
            prediction,
            start=example.context.find(prediction),
        )
    return samples


def cut_sentence(context: str, answer: str, start: int) -> Excerpt:
    """Return an answer in its sentence; alone, if it is none or does not stand in the text."""
    if not answer or start < 0:
        return Excerpt("", answer or "no answer", "")
    end = start + len(answer)
    before = context[max(0, start - AROUND) : start]
    after = context[end : end + AROUND]
    sentence_end = after.find(". ") + 1 or AROUND
    return Excerpt(before.rpartition(". ")[2], answer, after[:sentence_end])
