"""Groups of wrong answers, by what is wrong with them.

A group says where to look: at the threshold, the labels, or the places at which spans end. The
table of predict.py and the page of a run have the same ones.
"""

from collections.abc import Sequence

from detalbert.squad.normalization import answer_words

ABSTAINED = "abstained though there is one"
ANSWERED = "answered though there is none"
TOO_LONG = "span too long"
TOO_SHORT = "span too short"
OTHER = "other span"


def find_group(labels: Sequence[str], prediction: str, language: str) -> str:
    """Return the group of a wrong answer, "" of a correct one.

    Args:
        labels: the correct answers; none: the text has no answer.
        prediction: the answer given; "": none.
        language: `data.language`.
    """
    if not labels:
        return ANSWERED if prediction else ""
    if not prediction:
        return ABSTAINED

    # Compared as the scorer does it, and word by word.
    words = " ".join(answer_words(prediction, language))
    answer = f" {words} "
    correct = [f" {' '.join(answer_words(label, language))} " for label in labels]
    if answer in correct:
        return ""
    if any(label in answer for label in correct):
        return TOO_LONG
    # Tokens are shorter than words: a span may begin or end inside one.
    if words and any(words in label for label in correct):
        return TOO_SHORT
    return OTHER
