"""A question, as it is read, trained on and answered."""

from typing import NamedTuple


class Example(NamedTuple):
    """One question; `answers` are (text, character start in `context`), () if it is unanswerable,
    None if not known (in prediction only).
    """

    id: str
    title: str
    context: str
    question: str
    answers: tuple[tuple[str, int], ...] | None
