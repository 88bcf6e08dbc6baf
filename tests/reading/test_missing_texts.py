"""Rows without a text: however a missing value is written, it is passed over and counted."""

import csv
import json
from pathlib import Path

import pandas
import pytest

from detalbert.errors import UserError
from detalbert.reading.notes import Notes
from tests.reading import files
from tests.reading.files import json_lines, read_documents
from tests.reading.test_text_files import LINES, ROWS, TEXTS, write

MARKS = ["NULL", r"\N", "NA", "nan", "NaN", "None", "<NA>", "#N/A"]
LEFT_OUT = "rows have no text and are left out"


@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
def test_marks_of_null_in_a_table_are_no_documents(quoting: int, tmp_path: Path) -> None:
    texts = [TEXTS[0], *MARKS, TEXTS[1], "NA was sold.", TEXTS[2]]
    path = write(
        tmp_path / "a.csv", files.table([{"text": text} for text in texts], ",", "\n", quoting)
    )
    notes = Notes()
    assert read_documents(path, notes=notes) == [*TEXTS[:2], "NA was sold.", TEXTS[2]]
    assert notes.texts() == {f"{LEFT_OUT} (the first: line 3)": len(MARKS)}


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.parquet"])
def test_other_forms_have_null_and_keep_such_texts(name: str, tmp_path: Path) -> None:
    rows = [{"text": text} for text in MARKS]
    contents = {
        "a.jsonl": json_lines(rows),
        "a.json": json.dumps(rows),
        "a.parquet": files.parquet(rows),
    }
    assert read_documents(write(tmp_path / name, contents[name])) == MARKS


# As Spark and BigQuery write nulls: not at all.
SPARSE = [{"id": 0}, {"id": 1, **ROWS[0]}, {"id": 2}, {"id": 3, **ROWS[1]}, {"id": 4, **ROWS[2]}]


@pytest.mark.parametrize("part_bytes", [10, 1 << 20])
@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
def test_keys_that_json_leaves_out_are_null(name: str, part_bytes: int, tmp_path: Path) -> None:
    content = json_lines(SPARSE) if name == "a.jsonl" else json.dumps(SPARSE)
    notes = Notes()
    path = write(tmp_path / name, content)
    assert read_documents(path, notes=notes, part_bytes=part_bytes) == TEXTS
    assert notes.counts == {LEFT_OUT: 2}


@pytest.mark.parametrize("key", ["Text", "TEXT"])
def test_a_key_that_differs_in_capitals_is_the_key(key: str, tmp_path: Path) -> None:
    rows = [{"ID": number, key: text} for number, text in enumerate(TEXTS)]
    frame = pandas.DataFrame(rows)
    contents: dict[str, str | bytes] = {
        "a.jsonl": json_lines(rows),
        "a.json": json.dumps(rows),
        "a.csv": files.table(rows),
        "a.parquet": files.parquet(rows),
        "a.arrow": files.arrow(rows),
        "frame.json": frame.to_json() or "",
    }
    for name, content in contents.items():
        assert read_documents(write(tmp_path / name, content)) == TEXTS, name
    frame.to_excel(tmp_path / "a.xlsx", index=False)
    assert read_documents(tmp_path / "a.xlsx") == TEXTS


def test_of_two_keys_the_one_with_these_letters_counts(tmp_path: Path) -> None:
    both = [{"Text": "no", **row} for row in ROWS]
    assert read_documents(write(tmp_path / "a.jsonl", json_lines(both))) == TEXTS
    assert read_documents(write(tmp_path / "a.parquet", files.parquet(both))) == TEXTS
    other = [{"Text": "a", "TEXT": "b"}]
    with pytest.raises(UserError, match=r"has no 'text' \(there: Text, TEXT\)"):
        read_documents(write(tmp_path / "b.jsonl", json_lines(other)))


CURES = {
    "a.jsonl": ("{}", "text_key, as in data.text: {source: ..., text_key: body}"),
    "a.txt": ("{}\nTwo.\n", "or set data.form: text if its lines are the documents"),
    "b.txt": ("{}\n", "or set data.form: text if its lines are the documents"),
}


@pytest.mark.parametrize("name", CURES)
def test_a_file_without_the_key_is_told_what_to_set(name: str, tmp_path: Path) -> None:
    content, cure = CURES[name]
    path = write(tmp_path / name, content.replace("{}", '{"id": 1}'))
    with pytest.raises(UserError) as error:
        read_documents(path)
    assert "the line at byte 0 has no 'text' (there: id); correct it, or" in str(error.value)
    assert f"{cure}; a pattern in place of a folder leaves the file out" in str(error.value)
    if name.endswith(".txt"):
        assert read_documents(path, form="text") == path.read_text().splitlines()


def test_a_list_beside_texts_is_left_out_by_a_pattern(tmp_path: Path) -> None:
    write(tmp_path / "pg/a.txt", "\n".join(TEXTS))
    write(tmp_path / "pg/catalog.csv", "id,title\n1,Emma\n")
    with pytest.raises(UserError, match=r"catalog\.csv: .* a pattern in place of a folder"):
        read_documents(tmp_path / "pg")
    assert read_documents(tmp_path / "pg" / "*.txt") == TEXTS


def test_rows_with_texts_and_paragraphs_are_no_articles(tmp_path: Path) -> None:
    rows = [{**row, "paragraphs": ["a", "b"]} for row in ROWS]
    assert read_documents(write(tmp_path / "a.json", json.dumps(rows))) == TEXTS
    assert read_documents(write(tmp_path / "a.jsonl", json_lines(rows))) == TEXTS
    assert json_lines(ROWS) == LINES
