"""Answers as words, for comparison: as the official scorers take them apart.

English is that of SQuAD 2.0 (Rajpurkar et al. 2018, arXiv:1806.03822), every other language that of
MLQA (Lewis et al. 2020, arXiv:1910.07475), whose rules for seven languages are extended to others.
What is traded: a score in one language is not comparable with one in another.
"""

import re
import string
from functools import lru_cache
from unicodedata import category

from detalbert.settings.languages import ENGLISH

_ARTICLES = {
    ENGLISH: r"\b(?:a|an|the)\b",
    "ar": "ال",  # anywhere, as MLQA has it
    "de": r"\b(?:ein|eine|einen|einem|eines|einer|der|die|das|den|dem|des)\b",
    "es": r"\b(?:un|una|unos|unas|el|la|los|las)\b",
    "vi": r"\b(?:của|là|cái|chiếc|những)\b",
}
# Without spaces between words each character is one: Thai, Lao, Burmese, Khmer, kana, ideographs.
_SPACELESS = (
    "\u0e00-\u0eff\u1000-\u109f\ua9e0-\ua9ff\uaa60-\uaa7f\u1780-\u17ff"
    "\u3005-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uff66-\uff9f"
)
_WORDS = {
    **dict.fromkeys(("ja", "km", "lo", "my", "th"), rf"[{_SPACELESS}]|[^\s{_SPACELESS}]+"),
    "zh": r"[\u4e00-\u9fa5]|[^\s\u4e00-\u9fa5]+",  # as MLQA has it
}


class _Punctuation(dict[int, int | None]):
    """A table of `str.translate` without punctuation of Unicode, which grows as it is asked."""

    def __missing__(self, code: int) -> int | None:
        self[code] = None if category(chr(code)).startswith("P") else code
        return self[code]


_ASCII = str.maketrans("", "", string.punctuation)
_UNICODE = _Punctuation(_ASCII)


@lru_cache(maxsize=1 << 10)  # the gold answers of a question share many texts
def answer_words(text: str, language: str = ENGLISH) -> tuple[str, ...]:
    """Return lower-case words without punctuation and articles: us, army of "The U.S. army".

    Args:
        language: its ISO 639-1 code.
    """
    letters = text.lower().translate(_ASCII if language == ENGLISH else _UNICODE)
    plain = re.sub(_ARTICLES.get(language, "(?!)"), " ", letters)  # of the others nothing
    return tuple(re.findall(_WORDS.get(language, r"\S+"), plain))
