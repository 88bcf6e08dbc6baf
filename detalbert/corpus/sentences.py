"""Sentences of any language that marks their ends, and where a text can be cut between two of them.

Sentences end by a rule on characters, and not by a model or a library: the same text must give the
same sentences everywhere, for years, at 20 MB/s, and no language is named. (sentencex 1.0 takes a
language and a third of that speed; pysbd takes minutes for a megabyte.) Characters are sorted by
Unicode 3.2, which every Python has, so that a newer Python changes nothing. What is traded: an
unlisted abbreviation or a title in mid-sentence ends a sentence, which moves a place where a
segment may be cut; a text without capitals, and one in Thai, has a sentence per line.
"""

import re
from collections.abc import Collection
from unicodedata import ucd_3_2_0

from detalbert.corpus.blocks import SEGMENT

RULE = 3  # raise it when the same text gives other sentences


def _characters(categories: Collection[str]) -> str:
    """Return the characters of some Unicode categories as ranges of a set in a pattern."""
    ranges: list[tuple[int, int]] = []
    for code in range(0x10000):
        if ucd_3_2_0.category(chr(code)) not in categories:
            continue
        if ranges and ranges[-1][1] == code - 1:
            ranges[-1] = ranges[-1][0], code
        else:
            ranges.append((code, code))
    return "".join(rf"\u{first:04x}-\u{last:04x}" for first, last in ranges)


# Marks with white space behind them, and marks that need none: ideographic and halfwidth stops,
# danda, Urdu's, Armenian, Ethiopic, Khmer, Burmese.
_SPACED = ".!?؟…"
_ALONE = "。！？｡।॥۔։።។။"
_GREEK = r"\u0370-\u03ff\u1f00-\u1fff"  # whose question mark looks like a semicolon
_DIRECTIONS = r"\u061c\u200e\u200f"  # marks of writing direction, beside Arabic and Hebrew ones
_CLOSING = r"""\"'”’»›)\]」』）】""" + _DIRECTIONS
_CLOSING_IN_SOME = "“«"  # in German, and opening in most languages
_FRENCH_SPACE = "[ \u00a0\u202f]"  # inside of its quotation marks
_OPENING = r"""\"'“‘„«»‹(\[¿¡「『（【"""
# What can begin a sentence: capitals, letters of scripts without them, and digits.
_FIRST = "A-Z0-9À-Þ" + _characters({"Lu", "Lt", "Lo", "Nd"})
_INITIAL = _characters({"Lu", "Lo"})

# A line end; or an end mark with closing quotes or brackets, and behind most of the marks white
# space and something that can begin a sentence. A set of characters comes first, which the engine
# finds without trying every place: four times as fast as an alternative or a look-behind first.
_END = re.compile(
    rf"[{_SPACED}{_ALONE};\u037e\n](?:"
    r"(?<=\n)\n*"
    rf"|(?<=[{_ALONE}])([{_ALONE}]*[{_CLOSING}]*)\s*"
    rf"|(?:(?<=[{_SPACED}])|(?<=[{_GREEK}][;\u037e]))((?:[{_CLOSING}{_CLOSING_IN_SOME}]|{_FRENCH_SPACE}»)*)"
    rf"\s+(?=[{_DIRECTIONS}]?(?:«{_FRENCH_SPACE}|[{_OPENING}])?[{_FIRST}])"
    ")"
)
# Words that end with a point inside a sentence, most of them before a name.
_WORDS = {
    "Czech": "např tj tzv resp č čp čl odst sv nám tř Ing Mgr Bc MUDr JUDr PhDr RNDr",
    "English": "Mr Mrs Ms Dr St Prof Gen Col Lt Sgt Capt Rev Hon Jr Sr vs etc No Vol Fig ca approx "
    "e.g i.e cf U.S U.K D.C",
    "German": "z.B d.h bzw usw Nr Str Abb Bd Hrsg",
    "Greek": "κ κα κος Δρ π.χ βλ δηλ",
    "Hindi": "डॉ प्रो श्री",
    "Polish": "np tzn tzw ul św mgr inż",
    "Russian": "ул проф акад тов св обл гл т.е т.к",
    "Spanish": "Sra Srta Dra Ud Uds pág núm EE",
    "Turkish": "Doç Av Sn Yrd",
    "Ukrainian": "вул просп див доц напр ім",
}
_ENGLISH = set(_WORDS["English"].split())  # as they are: a capital has its own entry
_FOREIGN = set(" ".join(_WORDS.values()).split()) - _ENGLISH
_CAPITALIZED = {word[0].upper() + word[1:] for word in _FOREIGN}
_LISTED = "|".join(re.escape(word) for word in sorted(_ENGLISH | _FOREIGN | _CAPITALIZED))
_ABBREVIATION = re.compile(
    # Kana, ideographs and Hangul are syllables and words, and no initials.
    rf"""(?:^|[\s("'“„«])(?:(?![\u3040-\u9fff\uac00-\ud7a3])[{_INITIAL}]|{_LISTED}"""
    # A town or a river in Russian and Ukrainian; behind a number a unit, which ends a sentence.
    r"|(?<!\d\s)[гмр]"
    # German ordinals: "am 3. Oktober".
    r"|(?:am|vom|zum|zur|den|dem|der|die|das|im|bis|ab|seit)\s\d{1,2})\.$"
)
# A character that no match of _END takes in, and that ends what its look-ahead reads.
_PLAIN = rf"[^\s{_SPACED}{_ALONE};\u037e{_CLOSING}{_OPENING}]"
_FIRST_PLAIN = re.compile(_PLAIN)
_LAST_PLAIN = re.compile(f".*{_PLAIN}", flags=re.DOTALL)
# Characters at a text's end that are searched for its last sentence's end: few first, then more.
_TAILS = (4096, 32_768, SEGMENT)
_LONGEST_ABBREVIATION = 12  # characters, with those around it


def split_sentences(text: str, starts: bool = True, spaced: bool = False) -> list[str]:
    """Return the sentences of a segment in order, without the white space between them. `starts`
    says whether a document begins with it; if `spaced`, a sentence behind white space begins with
    one space.

    >>> split_sentences('Dr. Who came. "Who?" He left.')
    ['Dr. Who came.', '"Who?"', 'He left.']
    >>> split_sentences('He left. She stayed.', spaced=True)
    ['He left.', ' She stayed.']
    """
    if not starts:
        text = "\n" + text  # _ABBREVIATION's ^ is the start of a document
    begins = [0]
    stops: list[int] = []
    for end in _END.finditer(text):
        stop = _find_stop(text, begins[-1], end)
        if stop is not None:
            stops.append(stop)
            begins.append(end.end())
    stops.append(len(text))

    sentences: list[str] = []
    for begin, stop in zip(begins, stops, strict=True):
        sentence = text[begin:stop].strip()
        if spaced and any(map(str.isspace, text[max(0, begin - 1) : begin + 1])):
            sentence = f" {sentence}"
        if sentence.strip():
            sentences.append(sentence)
    return sentences


def find_sentence_end(text: str) -> int | None:
    """Return the place behind the last sentence that ends in a text, which is part of a longer one,
    and behind the white space that follows it; None if none is sure to end there.

    On both sides of the place `split_sentences` gives the sentences of the longer text: the search
    is between two characters that are part of no end, and the rule for abbreviations sees more of
    the sentence here than there. White space is behind every such place: without, a sentence goes
    on.
    """
    last = _LAST_PLAIN.match(text)
    if last is None:
        return None
    for tail in _TAILS:
        first = _FIRST_PLAIN.search(text, max(0, len(text) - tail))
        if first is None:
            continue
        ends = list(_END.finditer(text, first.start(), last.end()))
        for end in reversed(ends):
            has_space = text[end.end() - 1].isspace()
            if has_space and _find_stop(text, 0, end) is not None:
                return end.end()
    return None


def _find_stop(text: str, begin: int, end: re.Match[str]) -> int | None:
    """Return the place where a sentence from `begin` on stops: behind the end mark and the quotes
    of `end`, or before its line end. None if the mark is the point of an abbreviation.
    """
    if end.lastindex is None:  # a line end
        stop = end.start()
    else:
        stop = end.end(end.lastindex)
    # From the white space before the sentence, by which its first word is known as a word.
    last_word = max(0, begin - 1, stop - _LONGEST_ABBREVIATION)
    if _ABBREVIATION.search(text, last_word, stop):
        return None
    return stop
