"""An answer in its sentence, for the page of a run and a reply on a terminal."""

import re
from typing import NamedTuple

AROUND = 200  # characters on either side of an answer, at most
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")


class Excerpt(NamedTuple):
    """An answer in its sentence."""

    before: str
    answer: str
    after: str


def cut_sentence(context: str, answer: str, start: int) -> Excerpt:
    """Return an answer in its sentence; alone, if it is none or does not stand in the text.

    Args:
        start: character of `context` at which the answer begins; negative: nowhere.
    """
    if not answer or start < 0:
        return Excerpt("", answer or "no answer", "")
    # Some tokens begin with the space before their word.
    words = answer.strip()
    start += answer.index(words)
    end = start + len(words)
    before = _SENTENCE_END.split(context[max(0, start - AROUND) : start])[-1]
    after = _SENTENCE_END.split(context[end : end + AROUND])[0]
    return Excerpt(before, words, after)
