"""The place of an answer in its text, for questions that give the answer without a position."""

import re


def find_answer(context: str, answer: str) -> tuple[int, int, int] | None:
    """Return start and end (characters, end exclusive) of an answer, and how often it is there.

    The first of these that is there counts: the text as it is, between words; as it is, within a
    word; without regard to case and white space, between words; so within a word. "art" of "A
    party for art" is at 12, not at 3.
    """
    answer = answer.strip()
    words = r"\s+".join(map(re.escape, answer.split()))
    for pattern, flags in ((re.escape(answer), 0), (words, re.IGNORECASE)):
        found = [(m.start(), m.end()) for m in re.finditer(pattern, context, flags)]
        whole = [place for place in found if _is_whole(context, *place)]
        if places := whole or found:
            return (*places[0], len(places))
    return None


def _is_whole(context: str, start: int, end: int) -> bool:
    """Return whether no word goes on over the start or the end."""
    edges = context[max(start - 1, 0) : start + 1], context[end - 1 : end + 1]
    return not any(len(edge) == 2 and edge.isalnum() for edge in edges)
