"""Values of .xlsx cells as Excel shows them: by the number formats that sheets of questions have.

Dates by their parts, numbers with decimals, thousands, percent and words around them. Colors,
conditions, fractions and exponents are shown as numbers without a format; months and days have
their English names. A date whose format is the reader's locale has ISO 8601's, as no file says
what that is.
"""

import datetime
import re
from typing import Any

# The number formats of dates in the locale of who reads: 14 of the standard, and Windows' own.
_LOCALE_DATES = re.compile(r"General|mm-dd-yy(yy)?$|\[\$-F[48]00\]")
_DIGITS = re.compile(r"[#0?][#0?,]*(?:\.([#0?]+))?")
_EXPONENT = re.compile(r"[eE][+-]|/")
# What stands for itself: "km", \x, [$€-407]; spaces by _x, fillings by *x, [Red].
_QUOTED = r'"([^"]*)"|\\(.)|\[\$([^\]-]*)[^\]]*\]|_.|\*.|\[[^\]]*\]'
_LITERAL = re.compile(_QUOTED)
# m is of minutes beside hours or seconds.
_MINUTES = r"(?P<minutes>(?<=h:)m+|m+(?=:s))"
_DATE_PART = re.compile(rf"{_QUOTED}|AM/PM|{_MINUTES}|y+|m+|d+|h+|s+", re.IGNORECASE)
_CODES = {
    "yyyy": "%Y",
    "yy": "%y",
    "mmmm": "%B",
    "mmm": "%b",
    "m": "%m",
    "dddd": "%A",
    "ddd": "%a",
    "d": "%d",
    "h": "%H",
    "s": "%S",
    "am/pm": "%p",
}


def displayed(cell: Any) -> str:
    """Return the text of an openpyxl cell."""
    value = cell.value
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).upper()
    section, _, _ = cell.number_format.partition(";")  # that of numbers above 0
    if isinstance(value, (int, float)):
        return _number(value, section)
    if isinstance(value, (datetime.date, datetime.time)):
        return _date(value, section)
    return str(value)


def _number(value: float, section: str) -> str:
    pattern = _LITERAL.sub("", section)
    digits = _DIGITS.search(pattern)
    if digits is None or _EXPONENT.search(pattern):
        # General: whole numbers in full, others to 11 digits.
        is_whole = float(value).is_integer() and abs(value) < 1e15
        return str(int(value)) if is_whole else f"{value:.11g}"
    if "%" in pattern:
        value *= 100
    decimals = len(digits[1] or "")
    separator = "," if "," in digits[0] else ""
    number = f"{value:{separator}.{decimals}f}"

    # The number in the place of its digits, what stands for itself around it.
    template = _LITERAL.sub(_literal, section)
    return _DIGITS.sub(number, template, count=1).strip()


def _literal(match: re.Match[str]) -> str:
    return match[1] or match[2] or match[3] or ""


def _date(value: Any, section: str) -> str:
    if _LOCALE_DATES.search(section):
        return str(value).removesuffix(" 00:00:00")
    has_noon = "AM/PM" in section.upper()

    def part(match: re.Match[str]) -> str:
        code = match[0].lower()
        if code[0] in '"\\[_*':
            return _literal(match)
        form = _CODES.get(code) or _CODES[code[0]]
        if match["minutes"]:
            form = "%M"
        elif code[0] == "h" and has_noon:
            form = "%I"
        text = value.strftime(form)
        return text if len(code) > 1 else text.lstrip("0") or "0"

    return _DATE_PART.sub(part, section).strip()
