"""Text from elsewhere, changed so that what shows it does not obey it.

A terminal obeys control characters, and a spreadsheet a cell that begins as a formula. Ids,
contexts and file names can hold both. What is printable stays as it is.
"""

import re

LONGEST = 2_000  # characters of a printed line
# C0 without tab and line feed, DEL and C1; overrides and isolates of the writing direction, which
# make a line read otherwise than it is; half characters, which no output can encode.
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
# A cell begins at the start of its text and, for a program that cuts a table otherwise than at
# commas, after a semicolon, a tab or a line break.
_CELL_START = r"(?:\A|(?<=[;\t\r\n]))"
_FORMULA = r"(?='* *[=+\-@\t\r\uff0b\uff0d\uff1d\uff20])"  # the last four: full-width + - = @
_FORMULA_START = re.compile(_CELL_START + _FORMULA)


def escape_controls(text: str) -> str:
    r"""Return `text` for a terminal or a log: control characters as Python writes them, `\x1b`."""
    return CONTROL.sub(
        lambda match: match[0].encode("unicode_escape").decode(),
        text,
    )


def one_line(text: str, limit: int = LONGEST) -> str:
    """Return at most `limit` characters of `text`, for a terminal or a log, without line breaks."""
    line = escape_controls(" ".join(text.splitlines()))
    return line if len(line) <= limit else f"{line[: limit - 4]} ..."


def csv_cell(text: str) -> str:
    """Return `text` for a cell of a table: an apostrophe stands before each place from which a
    spreadsheet might read a formula.

    "=1+1" becomes "'=1+1", "a;=1+1" becomes "a;'=1+1". Apostrophes that stand there already get
    one more, so that taking one away everywhere gives the text back (docs/predict.md).
    """
    return _FORMULA_START.sub("'", text)
