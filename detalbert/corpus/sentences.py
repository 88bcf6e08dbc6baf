"""Sentences of a document in a language that marks their ends.

A mark ends a sentence by a rule on characters; whether a point does, or is part of a word, is known
by `sentencex` (some 30 languages, and what is near to them) and by one table of what it lacks. So
the same text gives the same sentences everywhere. English has the table alone: `sentencex` lets
lists and initials go on over true ends (the request ID. Example). What is traded: an unlisted
abbreviation ends a sentence, and a text without capitals has a sentence per line.
"""

import itertools
import re
from functools import cache
from pathlib import Path

import sentencex

from detalbert.settings.languages import ENGLISH
from detalbert.settings.yaml_files import read_yaml

RULE = 5  # raise it when the same text gives other sentences

# Marks with white space behind them, and marks that need none: ideographic and halfwidth stops,
# danda, Urdu's, Armenian, Ethiopic, Khmer, Burmese.
_SPACED = ".!?؟…"
_ALONE = "。！？｡।॥۔։።។။"
_DIRECTIONS = r"\u061c\u200e\u200f"  # marks of writing direction, beside Arabic and Hebrew ones
_CLOSING = r"""\"'”’»›)\]」』）】""" + _DIRECTIONS
_FRENCH_SPACE = "[ \u00a0\u202f]"  # inside of its quotation marks

# A quotation that its sentence goes on from: 「本当？」と, “你是谁？”他问.
_QUOTED = (
    r"(?:と(?!ころ|ても|にかく|もかく|きどき)|って|という|なんて|など|だと|です|は(?![いじ])"
    r"|[がをのや]|で(?!も)|に(?!わか)|も(?!う|し|ちろん)|か[らをが]"
    r"|[^。！？；，：\s“「『]{1,5}[说說道问問答喊叫][。，])"
)
# A line end; or an end mark with closing quotes or brackets (group 1 or 2), and behind most of the
# marks white space and the first letter or digit of a sentence (group 3). A set of characters comes
# first, which the engine finds without trying every place: four times as fast as an alternative.
_END = re.compile(
    rf"[{_SPACED}{_ALONE};\u037e\n](?:"
    r"(?<=\n)\n*"
    # Also the ellipsis of Chinese and Japanese behind four characters: no list, no stammer.
    rf"|(?:(?<=[{_ALONE}])|(?<=[\u3040-\u9fff]{{4}}…)…(?![、，。！？]))"
    rf"(?![{_ALONE}]*[{_CLOSING}]+{_QUOTED})([{_ALONE}]*[{_CLOSING}]*)\s*"
    # Behind a letter of Thai and its like no mark ends a sentence, only a line does.
    rf"|(?:(?<=[{_SPACED}])(?<![\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff].)"
    # Greek's question mark looks like a semicolon; “ and « close in German, and open elsewhere.
    r"|(?<=[\u0370-\u03ff\u1f00-\u1fff][;\u037e]))"
    rf"((?:[{_CLOSING}“«]|{_FRENCH_SPACE}»)*)\s+"
    rf"""(?=[{_DIRECTIONS}]?(?:«{_FRENCH_SPACE}|[\"'“‘„«»‹(\[¿¡「『（【])?[¿¡]?([^\W_]))"""
    ")"
)
# Where a word begins.
_BORDER = r"""(?<![^\s("'“„«。！？”」』）])"""
# As long as abbreviations are: other words are passed over before the list is tried, which takes
# two thirds of the time away.
_SHORT = r"(?=\S{1,6}\.$|\S+[\s.]\S{1,4}\.$)"
# A letter (group 1), an initial if it is a capital. Ideographs, kana and Hangul are words.
_INITIAL = r"(?![\u3040-\u9fff\uac00-\ud7a3\u0e00-\u0eff])([^\W\d_])"
_NOTHING = "(?!)"  # matches nothing
_LONGEST = 16  # characters of an abbreviation and the word before it
_TABLE = read_yaml(Path(__file__).with_name("abbreviations.yaml"))


def split_sentences(text: str, spaced: bool = False, language: str = ENGLISH) -> list[str]:
    """Return the sentences of a document in order, without the white space between them.

    >>> split_sentences('Dr. Who came. "Who?" He left.')
    ['Dr. Who came.', '"Who?"', 'He left.']
    >>> split_sentences('He left. She stayed.', spaced=True)
    ['He left.', ' She stayed.']

    Args:
        spaced: whether a sentence behind white space begins with one space.
        language: its ISO 639-1 code.
    """
    starts = None  # of sentences, as far as a point is concerned
    if language != ENGLISH:
        starts = set(itertools.accumulate(map(len, sentencex.segment(language, text))))
    pieces = []
    begin = 0
    for end in _END.finditer(text):
        stop = _find_stop(text, end)
        goes_on = starts is not None and end[0][0] == "." and end.end() not in starts
        if stop is not None and _is_end(text[begin:stop][-_LONGEST:], language, goes_on):
            pieces.append(text[begin:stop])
            begin = stop
    pieces.append(text[begin:])
    return [
        " " * (spaced and piece[0].isspace()) + piece.strip() for piece in pieces if piece.strip()
    ]


def _find_stop(text: str, end: re.Match[str]) -> int | None:
    """Return the place behind the end mark and the quotes of `end`, or before its line end; None
    before a small letter, with which no sentence begins.
    """
    if end[3] and not end[3].islower():
        return end.end(2)
    if "\n" in end[0]:
        return text.index("\n", end.start())
    return None if end[3] else end.end(1)


def _is_end(words: str, language: str, goes_on: bool) -> bool:
    """Return whether a sentence ends with `words`, unless it `goes_on` as `sentencex` knows."""
    word = _pattern("inside", language).search(words)
    if word is not None and not (word[1] and word[1].islower()):  # a small letter is no initial
        goes_on = True
    return not goes_on or _pattern("last", language).search(words) is not None


@cache
def _pattern(kind: str, language: str) -> re.Pattern[str]:
    """Return the pattern of a language's words of a kind, at the end of a text."""
    words = _TABLE[kind].get(language, _NOTHING)
    if kind == "inside":
        others = _NOTHING if language == ENGLISH else _TABLE[kind]["others"]
        words += f"|{_TABLE[kind]['every']}|{others}|{_INITIAL}"
    return re.compile(rf"{_BORDER}{_SHORT}(?i:{words})\.$", flags=re.VERBOSE)
