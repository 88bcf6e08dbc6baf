"""Values of .xlsx cells as Excel shows them: by the number formats that sheets of questions have.

Dates by their parts, numbers with decimals, thousands, percent and words around them. Colors,
conditions, fractions and exponents are shown as numbers without a format; months and days have
their English names. A date whose format is the reader's locale has ISO 8601's, as no file says
what that is.
"""

import datetime
import decimal
import re
from typing import Any

# The number formats of dates in the locale of who reads: 14 of the standard, and Windows' own.
_LOCALE_DATES = re.compile(r"General|mm-dd-yy(yy)?$|\[\$-F[48]00\]")
_DIGITS = re.compile(r"[#0?][#0?,]*(?:\.([#0?]+))?")
_ESCAPED = re.compile("_x([0-9A-Fa-f]{4})_")  # a character that XML cannot hold, mostly _x000D_
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
    if isinstance(value, str):
        return _ESCAPED.sub(lambda code: chr(int(code[1], 16)), value).replace("\r\n", "\n")
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, (int, float)):
        return _number(value, cell.number_format)
    section, _, _ = cell.number_format.partition(";")
    if isinstance(value, datetime.timedelta):
        return _duration(value, section)
    if isinstance(value, (datetime.date, datetime.time)):
        return _date(value, section)
    return str(value)


def _number(value: float, number_format: str) -> str:
    # Sections are those of positive numbers, negative ones and zero; without one, the first serves.
    sections = number_format.split(";")
    section = sections[0]
    shown = value
    if value < 0 and len(sections) > 1:
        section = sections[1]
        shown = -value  # the section has its own sign
    elif value == 0 and len(sections) > 2:
        section = sections[2]

    pattern = _LITERAL.sub("", section)
    digits = _DIGITS.search(pattern)
    template = _LITERAL.sub(_literal, section)
    if digits is None and len(sections) > 1:
        return template.strip()  # a word stands for the number
    if digits is None or not _is_plain(pattern, digits):
        return _general(value)
    if "%" in pattern:
        shown *= 100

    # The number in the place of its digits, what stands for itself around it.
    return _DIGITS.sub(_format_digits(shown, digits), template, count=1).strip()


def _is_plain(pattern: str, digits: re.Match[str]) -> bool:
    """Return whether a format has one run of digits, not scaled, without exponent or fraction."""
    others = pattern[: digits.start()] + pattern[digits.end() :]
    is_scaled = digits[0].endswith(",") or pattern.startswith(",", digits.end())
    return not is_scaled and not re.search(r"[#0?]", others) and not _EXPONENT.search(pattern)


def _format_digits(value: float, digits: re.Match[str]) -> str:
    """Return a number with the digits, decimals and separators that a format has, rounded half up
    as spreadsheets do.
    """
    whole_part, _, _ = digits[0].partition(".")
    decimals = digits[1] or ""
    step = decimal.Decimal(1).scaleb(-len(decimals))
    exact = decimal.Decimal(f"{value:.15g}")  # a spreadsheet has 15 digits
    rounded = abs(exact).quantize(step, rounding=decimal.ROUND_HALF_UP)
    whole, _, fraction = f"{rounded:f}".partition(".")

    whole = whole.zfill(whole_part.count("0"))
    if "," in whole_part:
        whole = f"{int(whole):,}"
    # Of decimals that need not be there (#), zeros at the end are not.
    shortest = decimals.rstrip("#?")
    while len(fraction) > len(shortest) and fraction.endswith("0"):
        fraction = fraction[:-1]
    sign = "-" if value < 0 and rounded else ""
    return f"{sign}{whole}.{fraction}" if fraction else f"{sign}{whole}"


def _general(value: float) -> str:
    """Return a number without a format: whole ones in full, others to 11 digits."""
    if isinstance(value, int):
        return str(value)
    if value.is_integer() and abs(value) < 1e21:
        return f"{decimal.Decimal(f'{value:.15g}'):f}"  # a spreadsheet has 15 digits
    text = f"{value:.11g}"
    is_short = 1e-9 < abs(value) < 1e11
    return f"{decimal.Decimal(text):f}" if is_short else text


def _duration(value: datetime.timedelta, section: str) -> str:
    """Return a duration in hours, or in minutes if its format begins with them."""
    seconds = round(value.total_seconds())
    minutes = seconds // 60
    if "[m" in section.lower():
        return f"{minutes}:{seconds % 60:02}"
    text = f"{minutes // 60}:{minutes % 60:02}"
    return f"{text}:{seconds % 60:02}" if "s" in section.lower() else text


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
