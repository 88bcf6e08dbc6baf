"""Answers beside the columns of the sheet that the questions came from."""

import csv
import json
from pathlib import Path
from typing import Any

import openpyxl
import pytest

from detalbert.files import whole_files
from detalbert.inference.workbook import open_workbook
from tests.test_predict import predict_here

CONTEXT = "The Kalonda carried tar. Ililra Voruro was captain of the Garlen."
# Own columns around ours, one of them named as ours; the last question's label is nowhere.
ROWS = [
    ["No.", "question", "context", "Answer", "remark"],
    ["1", "What did the Kalonda carry?", CONTEXT, "tar", "=1+1"],
    ["2", "Who was captain of the Zanto?", CONTEXT, "", ""],
    ["3", "Who was captain of the Garlen?", CONTEXT, "Nobody", "ask Bo"],
]
ANSWER = ["model_answer", "probability", "calibration", "start", "end", "left_out"]


def write_rows(path: Path) -> None:
    if path.suffix == ".csv":
        with path.open("w", newline="") as file:
            csv.writer(file).writerows(ROWS)
        return
    with whole_files() as open_file, open_workbook(path, open_file) as append:
        for row in ROWS:
            append(row)


def read_workbook(path: Path) -> list[list[Any]]:
    rows = openpyxl.load_workbook(path)["answers"].iter_rows(values_only=True)
    return [["" if cell is None else cell for cell in row] for row in rows]


@pytest.mark.parametrize("ending", [".csv", ".xlsx"])
def test_answers_stand_beside_the_columns_of_the_sheet(ending, local_run, tmp_path, capsys):
    write_rows(tmp_path / f"new{ending}")
    workbook = tmp_path / "answers.xlsx"
    options = ["--data", tmp_path / f"new{ending}", "--output-dir", tmp_path / "out"]
    options += ["--output", workbook, "--skip-invalid", "--errors"]
    assert predict_here("--model", local_run.path, *options) == 0
    assert f"predictions are in {tmp_path / 'out'} and {workbook}\n" in capsys.readouterr().out

    content = (tmp_path / "out" / "predictions.csv").read_bytes()
    assert content.startswith(b"\xef\xbb\xbf")
    header, *rows = csv.reader(content.decode("utf-8-sig").splitlines())
    assert header == ROWS[0] + ANSWER
    assert [row[:4] for row in rows] == [row[:4] for row in ROWS[1:]]
    assert [row[4] for row in rows] == ["'=1+1", "", "ask Bo"]
    predictions = json.loads((tmp_path / "out" / "predictions.json").read_text())
    assert [row[5] for row in rows[:2]] == [text.strip() for text in predictions.values()]
    assert rows[2][5:10] == [""] * 5
    assert "answer 'Nobody' is not in its context" in rows[2][10]

    # Wrong answers have the same rows behind their group.
    errors = (tmp_path / "out" / "errors.csv").read_text(encoding="utf-8-sig")
    errors_header, *wrong = csv.reader(errors.splitlines())
    assert errors_header == ["group", *header]
    assert ["label not in its text", *rows[2]] in wrong
    assert all(row[1:] in rows for row in wrong)

    # The workbook has the same, numbers as numbers and texts without the apostrophe.
    book_header, *book = read_workbook(workbook)
    assert book_header == header
    assert book[0][4] == "=1+1"
    for row, book_row in zip(rows, book, strict=True):
        assert [str(cell) for cell in book_row[5:6]] == row[5:6]
        assert book_row[6] == (float(row[6]) if row[6] else "")
        assert [str(cell) for cell in book_row[7 : len(row)]] == row[7:]


def test_an_output_of_another_kind_is_refused(capsys):
    words = ["--model", "m", "--data", "a.csv", "--output", "answers.csv"]
    assert predict_here(*words) == 2
    assert "'answers.csv': give a name that ends in .xlsx or .ods" in capsys.readouterr().err
