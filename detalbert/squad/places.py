"""Places of answers in their contexts, of their texts alone.

A text is sought word for word, then without regard to case and to the kinds of quotes, dashes and
white space, one character for one. What needs more than that is an error: its row is named.
"""

import re
import unicodedata
from functools import cache
from typing import NamedTuple

_PLAIN = {
    **dict.fromkeys("‘’‚‛′´`", "'"),
    **dict.fromkeys("“”„‟″«»", '"'),
    **dict.fromkeys("‐‑‒–—―−", "-"),
}
# Scripts that follow others without a space: a word may end between two of them.
_SPACELESS = (
    "\u3400-\u9fff\uf900-\ufaff",  # Han
    "\u3040-\u309f",  # Hiragana
    "\u30a0-\u30ff",  # Katakana
    "\u1100-\u11ff\u3130-\u318f\uac00-\ud7a3",  # Hangul
    "\u0e00-\u0e7f",  # Thai
    "\u0e80-\u0eff",  # Lao
    "\u1000-\u109f",  # Burmese
    "\u1780-\u17ff",  # Khmer
)
_CHANGES = [
    rf"(?<=[{script}])(?![{script}])|(?<![{script}])(?=[{script}])" for script in _SPACELESS
]
_LETTER = r"[^\W_]"
# A vowel sign or an accent, which belongs to the letter before it.
_MARK = (
    r"(?!\w)[\u0300-\u036f\u0591-\u05c7\u0610-\u061a\u064b-\u0670\u0900-\u0963\u0966-\u0eff"
    r"\u1000-\u109f\u1780-\u17ff]"
)
# Signs inside numbers, dates and times: 2.5, 1,500, 12:30, 2024-03-12.
_SIGN = "[.,:/'’-]"
# A place over which no word, number, date or time goes on.
_BORDER = re.compile(
    rf"(?:(?<!{_LETTER})(?<!{_MARK})|(?!{_LETTER})|{'|'.join(_CHANGES)})"
    rf"(?!{_MARK})(?!(?<=\d{_SIGN})\d)(?!(?<=\d){_SIGN}\d)"
)


class Place(NamedTuple):
    """The place of an answer in its context."""

    start: int  # first character
    end: int  # the character after it
    times: int  # how often it stands as well as there
    is_word: bool  # whether it begins and ends between words


def find_place(context: str, text: str) -> Place | None:
    """Return the first place of an answer, between words if it stands so anywhere; None if it is
    not there. "art" of "A party for art" is at 12, not at 3.
    """
    spans = [match.span() for match in re.finditer(re.escape(text.strip()), context)]
    words = [span for span in spans if _is_word(context, *span)]
    if not spans:
        # Between words alone: "NA" is not in "national".
        pattern = r"\s+".join(map(re.escape, _fold(text).split()))
        folded = [match.span() for match in re.finditer(pattern, _fold(context))]
        spans = words = [span for span in folded if _is_word(context, *span)]
    best = words or spans
    return Place(*best[0], times=len(best), is_word=bool(words)) if best else None


def _is_word(context: str, start: int, end: int) -> bool:
    borders = _BORDER.match(context, start), _BORDER.match(context, end)
    return None not in borders


def _fold(text: str) -> str:
    """Return a text in small letters with plain quotes and dashes, as long as before."""
    return "".join(map(_fold_character, text))


@cache
def _fold_character(character: str) -> str:
    plain = _PLAIN.get(character, character)
    folded = unicodedata.normalize("NFKC", plain).lower()
    return folded if len(folded) == 1 else character
