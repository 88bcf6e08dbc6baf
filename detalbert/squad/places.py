"""Places of answers in their contexts, given their texts alone.

The text as it is comes first. Sheets, PDFs and translators change quotes, dashes and accents, so
what is not there word for word is sought once more in a folded copy of the context; the place is
always that of the context as it stands.
"""

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

_JOINERS = "\u00ad\u200c\u200d\u2060\ufeff"  # soft hyphen, zero width; inside words
# Directions of Arabic and Hebrew, the stroke that makes Arabic words longer.
_DIRECTIONS = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
_IGNORED = f"{_JOINERS}{_DIRECTIONS}\u200b\u0640"
_TABLE = str.maketrans(
    {
        **dict.fromkeys("‘’‚‛′´`\u02bb\u02bc\u05f3", "'"),  # also of Ukrainian and Hebrew
        **dict.fromkeys("“”„‟″«»\u05f4", '"'),
        **dict.fromkeys("‐‑‒–—―−\u05be", "-"),
        # Letters of Arabic in Persian texts.
        **dict.fromkeys("\u0643", "\u06a9"),
        **dict.fromkeys("\u0649\u064a", "\u06cc"),
        **dict.fromkeys(_IGNORED, ""),
    }
)
_LAST_MARKS = " .,;:!?…。、．，！？।॥۔،؛؟"
# Scripts that follow others without a space: a word may end between two of them.
_SCRIPTS = re.compile(
    "(?P<han>[\u3400-\u9fff\uf900-\ufaff])|(?P<hiragana>[\u3040-\u309f])|(?P<katakana>[\u30a0-\u30ff])"
    "|(?P<hangul>[\u1100-\u11ff\u3130-\u318f\uac00-\ud7a3])|(?P<thai>[\u0e00-\u0e7f])"
    "|(?P<lao>[\u0e80-\u0eff])|(?P<burmese>[\u1000-\u109f])|(?P<khmer>[\u1780-\u17ff])"
)
_LETTERS = re.compile(r"\w\w")
# Signs between the digits of numbers, dates and times: 2.5, 1,500, 1'500, 12:30, 2024-03-12, 1/2.
_NUMBER = re.compile(r"\d[.,:/'’·⁄٫٬．：\u00a0\u2009\u202f-]\d")


class Place(NamedTuple):
    """The place of an answer in its context."""

    start: int  # first character
    end: int  # the character after it
    times: int  # how often it stands there
    is_word: bool  # whether no word goes on over its start or end
    is_folded: bool  # whether it stands there with other characters than was asked for


def find_answer(context: str, answer: str) -> Place | None:
    """Return the place of an answer; None if the context does not have it.

    The first of these that is there counts: the text as it is, between words; as it is, within a
    word; without regard to case and white space; folded: with the same letters under Unicode's
    NFKC, other quotes and dashes, without soft hyphens and last punctuation marks. "art" of "A
    party for art" is at 12, not at 3. Within a word only the same case counts: "NA" is not in
    "national".
    """
    answer = answer.strip()
    place = _first(context, answer, list(_exact_spans(context, answer)), is_folded=False)
    if place:
        return place

    # Without regard to case and white space.
    words = r"\s+".join(map(re.escape, answer.split()))
    matches = re.finditer(words, context, flags=re.IGNORECASE)
    place = _first(context, answer, [match.span() for match in matches], is_folded=False)
    if place:
        return place

    # Folded, with and without the last punctuation marks.
    for text in (answer, answer.rstrip(_LAST_MARKS)):
        place = _first(context, text, list(_folded_spans(context, text)), is_folded=True)
        if place:
            return place
    return None


def _exact_spans(context: str, answer: str) -> Iterator[tuple[int, int]]:
    """Yield the spans of an answer as it is, which do not overlap."""
    if not answer:
        return
    start = context.find(answer)
    while start >= 0:
        end = start + len(answer)
        yield start, end
        start = context.find(answer, end)


def _first(
    context: str, answer: str, spans: list[tuple[int, int]], is_folded: bool
) -> Place | None:
    """Return the first span that is between words, or the first of the answer's case within one;
    None without any.
    """
    between = [span for span in spans if is_word(context, *span)]
    chosen = between or [span for span in spans if _has_case_of(answer, context[slice(*span)])]
    if not chosen:
        return None
    start, end = chosen[0]
    return Place(
        start=start,
        end=end,
        times=len(chosen),
        is_word=bool(between),
        is_folded=is_folded,
    )


def _has_case_of(answer: str, text: str) -> bool:
    """Return whether a text, the same but for case and signs, has as many capitals."""
    return sum(map(str.isupper, text)) == sum(map(str.isupper, answer))


def is_word(context: str, start: int, end: int) -> bool:
    """Return whether no word, number, date or time goes on over the start or the end."""
    return not _is_inside_word(context, start) and not _is_inside_word(context, end)


def _is_inside_word(context: str, at: int) -> bool:
    """Return whether the characters before and at a place are of one word."""
    if not 0 < at < len(context) or " " in context[at - 1 : at + 1]:  # as nearly all
        return False
    if _is_attached(context[at]):
        return True

    # The last letter, without its vowel signs and accents.
    last = at - 1
    while last > 0 and _is_attached(context[last]):
        last -= 1
    if _LETTERS.fullmatch(context[last] + context[at]):
        return _script(context[last]) == _script(context[at])

    # A sign of a number is just before the place, or at it.
    before = context[max(at - 2, 0) : at + 1]
    after = context[at - 1 : at + 2]
    return any(map(_NUMBER.fullmatch, (before, after)))


def _is_attached(character: str) -> bool:
    """Return whether a character is of the word before it: a vowel sign, an accent, a joiner."""
    return character in _JOINERS or unicodedata.category(character).startswith("M")


def _script(character: str) -> str | None:
    script = _SCRIPTS.match(character)
    return script.lastgroup if script else None


def _folded_spans(context: str, answer: str) -> Iterator[tuple[int, int]]:
    """Yield the spans of the context that are the answer once both are folded."""
    wanted = fold(answer).text.strip()
    if not wanted:
        return
    folded = fold(context)
    begin = folded.text.find(wanted)
    while begin >= 0:
        last = begin + len(wanted) - 1
        # A span cuts no character of the context, such as a ligature, in two: the letters before
        # and after it are of other ones.
        starts = folded.starts
        is_cut = starts[begin] in starts[begin - 1 : begin]
        if not is_cut and starts[last] not in starts[last + 1 : last + 2]:
            yield starts[begin], folded.ends[last]
        # The next one may overlap: this one may not be whole.
        begin = folded.text.find(wanted, begin + 1)


class Folded(NamedTuple):
    """A text without what does not matter, and where each of its characters comes from."""

    text: str
    starts: list[int]  # of each character: where its source begins
    ends: list[int]  # and ends


@lru_cache(maxsize=2)  # of a context, for its questions, and of an answer
def fold(text: str) -> Folded:
    """Fold a text: letters under NFKC and without case, plain quotes and dashes, one space in place
    of white space.
    """
    letters: list[str] = []
    starts: list[int] = []
    ends: list[int] = []
    for start, end in _clusters(text):
        # Twice, as NFKC makes one of these characters of others.
        cluster = text[start:end].translate(_TABLE)
        cluster = unicodedata.normalize("NFKC", cluster).casefold()
        cluster = cluster.translate(_TABLE)

        # White space of any length is one space.
        if cluster.isspace():
            if letters and letters[-1] == " ":
                ends[-1] = end
                continue
            cluster = " "

        letters += cluster
        starts += [start] * len(cluster)
        ends += [end] * len(cluster)
    return Folded("".join(letters), starts=starts, ends=ends)


def _clusters(text: str) -> Iterator[tuple[int, int]]:
    """Yield the spans of characters with the marks that belong to them."""
    start = 0
    for at in range(1, len(text) + 1):
        if at == len(text) or not _joins(text[at]):
            yield start, at
            start = at


def _joins(character: str) -> bool:
    """Return whether a character belongs to the one before it: an accent, a vowel sign, a Hangul
    vowel, or a sound mark of narrow kana.
    """
    is_mark = unicodedata.category(character).startswith("M")
    return is_mark or "\u1160" <= character <= "\u11ff" or character in "\uff9e\uff9f"
