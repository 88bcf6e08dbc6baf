"""Text from elsewhere, changed so that what shows it does not obey it.

A terminal obeys control characters, and a spreadsheet a cell that begins as a formula. Ids,
contexts and file names can hold both. What is printable stays as it is.
"""

import json
import re

# C0 without tab and line feed, DEL and C1; overrides and isolates of the writing direction, which
# make a line read otherwise than it is; half characters, which no output can encode.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
# A cell begins at the start of its text and, for a program that cuts a table otherwise than at
# commas, after a semicolon, a tab or a line break.
_CELL_START = r"(?:\A|(?<=[;\t\r\n]))"
_FORMULA = r"(?='* *[=+\-@\t\r\uff0b\uff0d\uff1d\uff20])"  # the last four: full-width + - = @
_FORMULA_START = re.compile(_CELL_START + _FORMULA)


def escape_controls(text: str) -> str:
    r"""Return `text` for a terminal or a log: control characters as Python writes them, `\x1b`."""

    def escaped(match: re.Match[str]) -> str:
        character = match[0]
        return character.encode("unicode_escape").decode()

    return _CONTROL.sub(escaped, text)


def json_line(value: object) -> str:
    r"""Return `value` as one line of JSON for a terminal or a program: control characters as
    `\u001b`, other Unicode as it is. Raises ValueError for NaN and infinity, which JSON lacks.
    """

    def escaped(match: re.Match[str]) -> str:
        code_point = ord(match[0])
        return f"\\u{code_point:04x}"

    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return _CONTROL.sub(escaped, text)


def csv_cell(text: str) -> str:
    """Return `text` for a cell of a table: an apostrophe stands before each place from which a
    spreadsheet might read a formula.

    "=1+1" becomes "'=1+1", "a;=1+1" becomes "a;'=1+1". Apostrophes that stand there already get
    one more, so that taking one away everywhere gives the text back (docs/predict.md).
    """
    return _FORMULA_START.sub("'", text)
