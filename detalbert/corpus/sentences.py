"""Sentences of any language that marks their ends.

Sentences end by a rule on characters, and not by a model or a library: the same text must give the
same sentences everywhere, for years, at 20 MB/s, and no language is named. (sentencex 1.0 takes a
language and a third of that speed; pysbd takes minutes for a megabyte.) What is traded: an unlisted
abbreviation or a title in mid-sentence ends a sentence; a text without capitals, and one in Thai,
has a sentence per line.
"""

import re

RULE = 4  # raise it when the same text gives other sentences

# Marks with white space behind them, and marks that need none: ideographic and halfwidth stops,
# danda, Urdu's, Armenian, Ethiopic, Khmer, Burmese.
_SPACED = ".!?؟…"
_ALONE = "。！？｡।॥۔։።។။"
_DIRECTIONS = r"\u061c\u200e\u200f"  # marks of writing direction, beside Arabic and Hebrew ones
_CLOSING = r"""\"'”’»›)\]」』）】""" + _DIRECTIONS
_FRENCH_SPACE = "[ \u00a0\u202f]"  # inside of its quotation marks

# A line end; or an end mark with closing quotes or brackets (group 1 or 2), and behind most of the
# marks white space and the first letter or digit of a sentence (group 3). A set of characters comes
# first, which the engine finds without trying every place: four times as fast as an alternative.
_END = re.compile(
    rf"[{_SPACED}{_ALONE};\u037e\n](?:"
    r"(?<=\n)\n*"
    rf"|(?<=[{_ALONE}])([{_ALONE}]*[{_CLOSING}]*)\s*"
    # Greek's question mark looks like a semicolon; “ and « close in German, and open elsewhere.
    rf"|(?:(?<=[{_SPACED}])|(?<=[\u0370-\u03ff\u1f00-\u1fff][;\u037e]))"
    rf"((?:[{_CLOSING}“«]|{_FRENCH_SPACE}»)*)\s+"
    rf"""(?=[{_DIRECTIONS}]?(?:«{_FRENCH_SPACE}|[\"'“‘„«»‹(\[¿¡「『（【])?([^\W_]))"""
    ")"
)
# Words that end with a point inside a sentence, most of them before a name.
_LAST_WORD = re.compile(
    r"""(?:^|[\s("'“„«])(?:"""
    r"Mr|Mrs|Ms|Dr|St|Prof|Gen|Col|Lt|Sgt|Capt|Rev|Hon|Jr|Sr|vs|etc|No|Vol|Fig|ca|approx"
    r"|e\.g|i\.e|cf|U\.S|U\.K|D\.C"
    # Czech, and German with its ordinals (am 3. Oktober).
    r"|(?i:např|tj|tzv|resp|č|čp|čl|odst|sv|nám|tř|Ing|Mgr|Bc|MUDr|JUDr|PhDr|RNDr"
    r"|z\.B|d\.h|bzw|usw|Nr|Str|Abb|Bd|Hrsg"
    r"|(?:am|vom|zum|zur|den|dem|der|die|das|im|bis|ab|seit)\s\d{1,2}"
    # Greek, Hindi, Polish.
    r"|κ|κα|κος|Δρ|π\.χ|βλ|δηλ|डॉ|प्रो|श्री|np|tzn|tzw|ul|św|mgr|inż"
    # Russian and Ukrainian: a town, a river; behind a number a unit, which ends a sentence.
    r"|ул|проф|акад|тов|св|обл|гл|т\.е|т\.к|вул|просп|див|доц|напр|ім|(?<!\d\s)[гмр]"
    # Spanish, Turkish.
    r"|Sra|Srta|Dra|Ud|Uds|pág|núm|EE|Doç|Av|Sn|Yrd)"
    # One letter (group 1), an initial if it is a capital. Kana, ideographs and Hangul are syllables
    # and words, and no initials.
    r"|(?![\u3040-\u9fff\uac00-\ud7a3])([^\W\d_]))\.$"
)


def split_sentences(text: str, spaced: bool = False) -> list[str]:
    """Return the sentences of a document in order, without the white space between them. If
    `spaced`, a sentence behind white space begins with one space.

    >>> split_sentences('Dr. Who came. "Who?" He left.')
    ['Dr. Who came.', '"Who?"', 'He left.']
    >>> split_sentences('He left. She stayed.', spaced=True)
    ['He left.', ' She stayed.']
    """
    sentences = []
    begin = 0
    space = spaced and text[:1].isspace()
    for end in _END.finditer(text):
        stop = _find_stop(text, begin, end)
        if stop is not None:
            sentences.append(" " * space + text[begin:stop].strip())
            begin = end.end()
            space = spaced and stop < begin
    sentences.append(" " * space + text[begin:].strip())
    return [sentence for sentence in sentences if sentence.strip()]


def _find_stop(text: str, begin: int, end: re.Match[str]) -> int | None:
    """Return the place where a sentence from `begin` on stops: behind the end mark and the quotes
    of `end`, or before its line end. None if it goes on there.
    """
    if end[3] and not end[3].islower():
        stop = end.end(2)
    elif "\n" in end[0]:
        stop = text.index("\n", end.start())
    elif end[3]:  # with a small letter no sentence begins
        return None
    else:
        stop = end.end(1)
    # From the white space before the sentence, by which its first word is seen to be a word.
    word = _LAST_WORD.search(text, max(0, begin - 1, stop - 12), stop)
    # A small letter is no initial.
    return stop if word is None or word[1] and word[1].islower() else None
