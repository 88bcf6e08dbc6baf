"""What comes from elsewhere reaches neither a terminal nor a spreadsheet as something to obey."""

import csv
import io
import json
import logging
import re
import unicodedata
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import predict
from detalbert.errors import UserError, first_line
from detalbert.escapes import csv_cell, escape_controls, json_line
from detalbert.inference.reply import ask, format_reply
from detalbert.log import _Stderr, fail
from detalbert.waiting import Wait
from reports.report import to_csv
from tests.conftest import ROOT, max_examples
from tests.fakes.no_models import refused
from tests.fakes.trained import LocalRun

BIDI = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
ODD = st.sampled_from("\x1b\x07\x00\r\x7f\x85\x9b\u202e\u2066é東a ;=+-@'\t\n")
texts = st.text(ODD, max_size=20) | st.text(max_size=20)
HOSTILE = "\x1b]0;PWN\x07\x1b[2J\x9b31m\u202eevil"


def is_harmless(text: str) -> bool:
    """Whether a terminal obeys nothing of it but tabs and line feeds."""
    kinds = (unicodedata.category(character) for character in text if character not in "\t\n")
    return not {"Cc", "Cs"} & set(kinds) and not set(text) & set(BIDI)


@max_examples(300)
@given(texts)
def test_control_characters_are_shown_and_others_stay(text: str) -> None:
    shown = escape_controls(text)
    assert is_harmless(shown) and escape_controls(shown) == shown
    if is_harmless(text):
        assert shown == text
    error = UserError(text)
    assert is_harmless(str(error)) and "\n" not in str(error)
    assert is_harmless(str(UserError(first_line(ValueError(text or "x")))))
    record = logging.makeLogRecord({"msg": "%s", "args": (text,), "levelname": "INFO"})
    assert is_harmless(_Stderr().format(record)) and is_harmless(str(Wait(text)))
    encodable = not re.search("[\ud800-\udfff]", text)
    line = json_line({text: [text, 1.5, None]})
    assert is_harmless(line) and "\n" not in line
    assert not encodable or json.loads(line) == {text: [text, 1.5, None]}
    assert not is_harmless(text) or line == json.dumps(
        {text: [text, 1.5, None]}, ensure_ascii=False
    )


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_what_is_no_json_is_refused(number: float) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        json_line([number])


def restored(cell: str) -> str:
    """The text of a cell, by the pattern that the page names."""
    page = (ROOT / "docs" / "predict.md").read_text(encoding="utf-8")
    pattern = re.search(r'`re\.sub\(r"(.+?)", "", cell\)`', page)
    assert pattern
    return re.sub(pattern[1], "", cell)


@max_examples(500)
@given(texts)
def test_no_cell_begins_as_a_formula_however_it_is_cut(text: str) -> None:
    cell = csv_cell(text)
    assert restored(cell) == text
    assert not cell.startswith(("\t", "\r"))
    for part in re.split("[;\t\r\n]", cell):
        assert not part.lstrip(" ").startswith(("=", "+", "-", "@"))
    file = io.StringIO(newline="")
    csv.writer(file).writerow([cell, cell])
    assert next(csv.reader(io.StringIO(file.getvalue(), newline=""))) == [cell, cell]
    for delimiter in ";\t":  # of a program that takes the file for another table
        for row in csv.reader(io.StringIO(file.getvalue(), newline=""), delimiter=delimiter):
            for part in row:
                assert not part.lstrip(" ").startswith(("=", "+", "-", "@"))
    if not re.search("[=+@\t\r-]", text):
        assert cell == text


def test_a_prediction_s_table_runs_nothing(local_run: LocalRun, tmp_path: Path) -> None:
    ids = ["\t=1+1", "\r=2+2", "a;=3+3", "plain", "'=4", "x\n@y"]
    rows = [{"id": name, "question": f"{name}?", "context": "The Zanto had tar."} for name in ids]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    words = ["--data", tmp_path / "rows.jsonl", "--output-dir", tmp_path / "out"]
    assert predict.main(["--model", str(local_run.path), *map(str, words)]) == 0
    with (tmp_path / "out" / "predictions.csv").open(encoding="utf-8-sig", newline="") as file:
        table = list(csv.DictReader(file))
    cells = ["'\t'=1+1", "'\r'=2+2", "a;'=3+3", "plain", "''=4", "x\n'@y"]
    assert [row["id"] for row in table] == cells
    assert [restored(row["id"]) for row in table] == ids
    assert [restored(row["question"]) for row in table] == [f"{name}?" for name in ids]


def test_a_report_s_table_runs_nothing_and_keeps_its_numbers() -> None:
    frame = pd.DataFrame({"name": ["=1+1", "run"], "=head": [-1.5, None], "n": [-1, 2]})
    assert to_csv(frame) == "name,'=head,n\n'=1+1,-1.5,-1\nrun,,2\n"


@max_examples(60)
@given(question=texts.filter(str.strip), context=texts.map(lambda text: f"Ada wrote {text} tar."))
def test_no_reply_is_obeyed(model: Any, question: str, context: str) -> None:
    encodable = re.sub("[\ud800-\udfff]", "?", f"{question}\0{context}").split("\0", 1)
    reply = ask(model, *encodable, threshold=1e9)
    assert is_harmless(format_reply(reply, encodable[1], listed=True))


def test_a_reply_on_windows_lines_is_shown_as_before(model: Any) -> None:
    context = "Ada wrote\r\nthe book of\ttar."
    shown = format_reply(ask(model, "Who wrote?", context, 1e9), context)
    assert "\\x" not in shown and "\\r" not in shown


def test_an_error_with_a_hostile_id_is_printed_harmless(
    local_run: LocalRun, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = {"id": HOSTILE, "question": "q", "context": " "}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    words = ["--model", local_run.path, "--data", tmp_path / "rows.jsonl"]
    refused(words, r"question \x1b]0;PWN\x07\x1b[2J\x9b31m\u202eevil: its context", capsys)
    named = tmp_path / f"{HOSTILE}.jsonl"
    refused(["--model", local_run.path, "--data", named], r"\x1b[2J\x9b31m\u202eevil.jsonl", capsys)
    monkeypatch.setenv("DET_TASK_TYPE", "TRIAL")
    assert fail("predict.py", UserError(HOSTILE)) == 2
