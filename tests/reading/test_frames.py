"""Frames as pandas writes them to JSON, in each of its forms."""

import json
from pathlib import Path
from typing import Any

import pandas
import pytest

from detalbert.errors import UserError
from detalbert.reading.forms import HEAD, recognise
from detalbert.reading.json_values import LABEL
from detalbert.reading.notes import Notes
from detalbert.reading.rows import rows_of_file
from detalbert.reading.storage import list_files
from tests.reading.files import read_documents, read_questions

FRAME = pandas.DataFrame(
    {
        "question": ["Who?", "Where?", "When?"],
        "context": ["Anna lives in Rome.", "Anna lives in Rome.", "It was in 1912."],
        "answer": ["Anna", "Rome", None],
    }
)
ROWS = json.loads(FRAME.to_json(orient="records"))


def read(path: Path) -> list[Any]:
    """Return the rows without labels."""
    (file,) = list_files(str(path), key="data.train")
    rows = rows_of_file(recognise(file), Notes(), needed=["question", "text"])
    return [{name: row[name] for name in row if name != LABEL} for _, row in rows]


def read_ids(frame: pandas.DataFrame, path: Path, orient: str) -> list[str]:
    frame.to_json(path, orient=orient)
    return [example.id for example in read_questions(path)]


@pytest.mark.parametrize("orient", ["columns", "index", "split", "records", "table"])
@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("name", ["frame.json", "frame"])
def test_a_frame_gives_its_rows(tmp_path: Path, orient: str, indent: int, name: str) -> None:
    FRAME.to_json(tmp_path / name, orient=orient, indent=indent)
    rows = read(tmp_path / name)
    names = list(FRAME.columns)
    assert [{column: row[column] for column in names} for row in rows] == ROWS


@pytest.mark.parametrize("orient", ["columns", "index", "split"])
def test_a_frame_longer_than_the_head(tmp_path: Path, orient: str) -> None:
    frame = pandas.concat([FRAME] * (HEAD // 50), ignore_index=True)
    frame.to_json(tmp_path / "frame.json", orient=orient)
    assert (tmp_path / "frame.json").stat().st_size > 2 * HEAD
    assert read(tmp_path / "frame.json") == ROWS * (HEAD // 50)


ORIENTS = ["columns", "index", "split"]


@pytest.mark.parametrize("orient", ORIENTS)
def test_labels_are_ids(tmp_path: Path, orient: str) -> None:
    path = tmp_path / "frame.json"
    frame = FRAME.assign(answer=["Anna", "Rome", ""])
    for labels in (["a", "b", "c"], [5, 0, 2], ["7", "8", "9"]):
        ids = list(map(str, labels))
        assert read_ids(frame.set_axis(labels), path, orient) == ids
        # A column of ids counts before the labels.
        assert read_ids(frame.assign(guid=["x", "y", "z"]).set_axis(labels), path, orient) == [
            "x",
            "y",
            "z",
        ]
    # Numbers of rows are none.
    assert read_ids(frame, path, orient) == ["1", "2", "3"]
    assert read_ids(frame.assign(Id=["x", "y", "z"]), path, orient) == ["x", "y", "z"]


def test_an_index_beside_rows_is_none_of_pandas(tmp_path: Path) -> None:
    text = json.dumps({"index": ["a", "b", "c", "d"], "data": ROWS})
    (tmp_path / "rows.json").write_text(text)
    assert read(tmp_path / "rows.json") == ROWS


def test_labels_that_repeat(tmp_path: Path) -> None:
    """Numbers repeat if frames are put together; of texts two rows have one id."""
    path = tmp_path / "frame.json"
    frame = FRAME.assign(answer=["Anna", "Rome", ""])
    assert read_ids(frame.set_axis([0, 1, 0]), path, "split") == ["1", "2", "3"]
    with pytest.raises(UserError, match="question a: another one has this id"):
        read_ids(frame.set_axis(["a", "b", "a"]), path, "split")


def test_a_column_named_0_is_a_column(tmp_path: Path) -> None:
    FRAME.assign(**{"0": 1})[["0", *FRAME.columns]].to_json(tmp_path / "frame.json")
    assert read(tmp_path / "frame.json") == [{"0": 1, **row} for row in ROWS]


@pytest.mark.parametrize("orient", ["columns", "split", "records"])
def test_a_frame_without_rows_has_none(tmp_path: Path, orient: str) -> None:
    FRAME[:0].to_json(tmp_path / "frame.json", orient=orient)
    assert read(tmp_path / "frame.json") == []


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    frame = {"columns": ["question", "question"], "index": [0], "data": [["a?", "b?"]]}
    (tmp_path / "frame.json").write_text(json.dumps(frame))
    with pytest.raises(UserError, match="two columns are named 'question'; rename one"):
        read(tmp_path / "frame.json")


def test_rows_with_a_list_named_data_are_rows(tmp_path: Path) -> None:
    rows = [{"meta": {n: 1}, "data": [{"question": "no?"}], "question": f"{n}?"} for n in "123"]
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    assert read(tmp_path / "rows.jsonl") == rows


def test_rows_with_a_list_named_data_behind_a_long_line_are_rows(tmp_path: Path) -> None:
    rows = [{"data": [{"question": "no?"}], "question": f"{n}?", "text": "x" * HEAD} for n in "12"]
    (tmp_path / "rows.json").write_text("\n".join(json.dumps(row) for row in rows))
    assert read(tmp_path / "rows.json") == rows


@pytest.mark.parametrize("indent", [None, 2])
def test_a_frame_of_lists_gives_its_rows(tmp_path: Path, indent: int | None) -> None:
    """As `to_dict("list")` writes it."""
    lists = {name: [row[name] for row in ROWS] for name in ROWS[0]}
    (tmp_path / "lists.json").write_text(json.dumps(lists, indent=indent))
    assert read(tmp_path / "lists.json") == ROWS
    (tmp_path / "texts.json").write_text(json.dumps({"text": ["A ship.", "A crew."]}))
    assert read_documents(tmp_path / "texts.json") == ["A ship.", "A crew."]


def test_lists_of_other_names_are_one_row(tmp_path: Path) -> None:
    row = {"tokens": ["a", "b"], "tags": [1, 2]}
    (tmp_path / "row.json").write_text(json.dumps(row))
    assert read(tmp_path / "row.json") == [row]


def test_a_page_of_the_hub_gives_its_rows(tmp_path: Path) -> None:
    page = {
        "features": [{"name": "question"}],
        "rows": [{"row_idx": n, "row": row, "truncated_cells": []} for n, row in enumerate(ROWS)],
        "num_rows_total": 3,
    }
    (tmp_path / "page.json").write_text(json.dumps(page))
    assert read(tmp_path / "page.json") == ROWS
    page["rows"][1]["truncated_cells"] = ["context"]
    (tmp_path / "page.json").write_text(json.dumps(page))
    with pytest.raises(UserError, match=r"row 2: the hub has cut \['context'\]; name the data set"):
        read(tmp_path / "page.json")


def test_a_frame_of_texts_is_a_corpus(tmp_path: Path) -> None:
    texts = ["The ship sank.", "The crew swam.", "The silk was lost."]
    pandas.DataFrame({"text": texts, "year": [1, 2, 3]}).to_json(tmp_path / "texts.json")
    assert read_documents(tmp_path / "texts.json") == texts


def test_data_far_behind_the_beginning_of_a_line_is_found(tmp_path: Path) -> None:
    text = json.dumps({"made": "x" * (2 * HEAD), "data": ROWS})
    (tmp_path / "late.json").write_text(text)
    assert read(tmp_path / "late.json") == ROWS
