"""What comes from elsewhere reaches neither a terminal nor a spreadsheet as something to obey."""

import csv
import io
import json
import logging
import re
import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from detalbert.errors import UserError, first_line
from detalbert.escapes import LONGEST, csv_cell, escape_controls
from detalbert.inference.reply import json_line
from detalbert.log import _Stderr, fail
from tests.conftest import ROOT, max_examples

BIDI = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
ODD = st.sampled_from("\x1b\x07\x00\r\x7f\x85\x9b\u202e\u2066é東a ;=+-@'\t\n")
texts = st.text(ODD, max_size=20) | st.text(max_size=20)


def is_harmless(text):
    """Whether a terminal obeys nothing of it but tabs and line feeds."""
    kinds = (unicodedata.category(character) for character in text if character not in "\t\n")
    return not {"Cc", "Cs"} & set(kinds) and not set(text) & set(BIDI)


@max_examples(300)
@given(texts)
def test_control_characters_are_shown_and_others_stay(text):
    shown = escape_controls(text)
    assert is_harmless(shown)
    assert escape_controls(shown) == shown
    error = UserError(text, key=text, cure=first_line(ValueError(text or "x")))
    assert is_harmless(str(error))
    assert "\n" not in str(error)
    record = logging.makeLogRecord({"msg": "%s", "args": (text,), "levelname": "INFO"})
    assert is_harmless(_Stderr().format(record))

    value = {text: [text, 1.5, None]}
    line = json_line(value)
    assert is_harmless(line)
    assert "\n" not in line
    if not re.search("[\ud800-\udfff]", text):
        assert json.loads(line) == value
    if is_harmless(text):
        assert shown == text
        assert line == json.dumps(value, ensure_ascii=False)


def test_a_printed_line_has_a_limit(capsys):
    long = "\x1b" * LONGEST
    fail("x.py", UserError(long, key=long, cure=long))
    record = logging.makeLogRecord({"msg": long, "levelname": "INFO"})
    lines = [*capsys.readouterr().err.splitlines(), _Stderr().format(record)]
    assert max(map(len, lines)) < 1.1 * LONGEST


@max_examples(500)
@given(texts)
def test_no_cell_begins_as_a_formula_however_it_is_cut(text):
    cell = csv_cell(text)
    # The text comes back by the pattern that the page names.
    page = (ROOT / "docs" / "predict.md").read_text(encoding="utf-8")
    pattern = re.search(r'`re\.sub\(r"(.+?)", "", cell\)`', page)
    assert pattern
    assert re.sub(pattern[1], "", cell) == text
    if not re.search("[=+@\t\r-]", text):
        assert cell == text

    # Also of a program that takes the file for another table.
    file = io.StringIO(newline="")
    csv.writer(file).writerow([cell, cell])
    parts = re.split("[;\t\r\n]", cell)
    for delimiter in ";\t":
        for row in csv.reader(io.StringIO(file.getvalue(), newline=""), delimiter=delimiter):
            parts += row
    for part in parts:
        assert not part.lstrip(" ").startswith(("=", "+", "-", "@"))
