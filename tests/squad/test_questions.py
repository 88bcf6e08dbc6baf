"""Questions of rows: shapes, labels and their places, columns, splits; every fault in one line."""

import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pandas
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from detalbert.errors import UserError
from detalbert.squad.example import Example
from detalbert.squad.places import find_place
from detalbert.squad.questions import INSIDE, REPEATED, read_examples
from detalbert.squad.sources import Reading, open_source
from tests.fakes.questions import read_questions, read_squad
from tests.reading.test_records import to_csv, to_lines, write_book

LEDGER = "On 3 May the Dalma brought forty barrels of tar, and the Orsa salt. The tar was sold."
TAR = ("forty barrels of tar", 27)
ASKED = {"question": "What did it bring?", "context": LEDGER}
Row = dict[str, Any]


def read(path, split="train", **keys):
    return list(read_examples(open_source(str(path), split, Path("cache"), Reading(**keys))))


def write(path, *rows):
    if path.suffix == ".xlsx":
        write_book(path, list(rows))
    elif path.suffix == ".parquet":
        pandas.DataFrame(rows).to_parquet(path)
    else:
        write_text = to_csv if path.suffix == ".csv" else to_lines
        path.write_text(write_text(rows), newline="")
    return path


def squad(*questions, **paragraph):
    return {"title": "T", "paragraphs": [{"context": LEDGER, "qas": questions, **paragraph}]}


LABELLED = {"question": "What?", "id": "a", "answers": [{"text": TAR[0], "answer_start": 27}]}
LABELS = yaml.safe_load(Path(__file__).with_name("labels.yaml").read_text())


@pytest.mark.parametrize(("columns", "answers"), LABELS, ids=str)
def test_labels_in_every_shape(columns, answers, tmp_path):
    path = write(tmp_path / "a.jsonl", {**ASKED, **columns})
    (example,) = read_questions(path)
    spans = None if answers is None else tuple(map(tuple, answers))
    assert example == Example("1", "", LEDGER, ASKED["question"], spans)
    if answers is not None:
        assert read(path) == [example]
        return
    with pytest.raises(UserError, match=r'a.jsonl: line 1: .*data.no_answer: \[""\]'):
        read(path)
    says_no = columns.get("is_impossible") is False
    if not says_no:
        assert [answered.answers for answered in read(path, no_answer=[""])] == [()]


def test_marks_of_no_answer(tmp_path):
    rows = [{**ASKED, "answer": mark} for mark in ("n/a", "-", "not said", "tar")]
    path = write(tmp_path / "a.csv", *rows)
    with pytest.raises(UserError, match=r"answer '-' may mean .* data.no_answer: \['-'\]"):
        read(path)
    examples = read(path, no_answer=["n/a", "-", "not said"])
    assert [example.answers for example in examples] == [(), (), (), (("tar", 44),)]


# Contexts, answers, and their first characters with what they are there; None: not found.
PLACES = [
    ("A party for art", "art", (12, "art")),
    ("In NATO", "NA", (3, "NA")),
    ("In national", "NA", None),
    ("It costs 2.5 or 5 euros", "5", (16, "5")),
    ("At 12:30, or at 12", "12", (16, "12")),
    ("It weighs 1,500 kg", "1,500 KG", (10, "1,500 kg")),
    ("The “Zanto’s”\ncrew", '"zanto\'s" crew', (4, "“Zanto’s”\ncrew")),
    ("from 1912–1914", "1912-1914", (5, "1912–1914")),
    ("東京都は首都。京都も都市", "京都", (7, "京都")),
    ("港口於１９１１年 記錄", "1911年", (3, "１９１１年")),
    ("दिन, दीन, दिनों, दि", "दि", (17, "दि")),
    ("Sie kam in die Straße", "STRASSE", None),
    ("A harbour", "harbor", None),
]


@pytest.mark.parametrize(("context", "answer", "expected"), PLACES)
def test_places_of_answers_without_a_start(context, answer, expected):
    place = find_place(context, answer)
    assert (place and (place.start, context[place.start : place.end])) == expected


@given(st.text("ab .東é’'", min_size=1, max_size=30), st.data())
def test_whatever_is_there_is_found(context, data):
    start = data.draw(st.integers(0, len(context) - 1))
    end = data.draw(st.integers(start + 1, len(context)))
    answer = context[start:end].strip()
    if answer:
        place = find_place(context, answer)
        assert place is not None
        assert context[place.start : place.end] == answer


def test_squad_is_read_alike_in_every_form(golden_dir, tmp_path):
    """As articles, rows, tables and sheets; without starts 32 of 1,299 labels are elsewhere."""
    examples = read_squad(golden_dir / "dev.json")
    rows = []
    for example in examples:
        texts = [text for text, _ in example.answers]
        starts = [start for _, start in example.answers]
        answers = {"text": texts, "answer_start": starts}
        rows.append({**example._asdict(), "answers": answers})
    cells = [{**row, "answers": json.dumps(row["answers"])} for row in rows]
    for name in ("dev.jsonl", "dev.csv", "dev.xlsx"):
        path = write(tmp_path / name, *(rows if name == "dev.jsonl" else cells))
        assert read(path) == examples

    texts = [{**row, "answers": {"text": row["answers"]["text"]}} for row in rows]
    counts = Counter()
    source = open_source(str(write(tmp_path / "texts.jsonl", *texts)), "train", tmp_path)
    searched = list(read_examples(source, counts=counts))
    moved = [
        old
        for old, new in zip(examples, searched, strict=True)
        if old.answers[:1] != new.answers[:1]
    ]
    assert len(moved) == 32
    assert (counts[REPEATED], counts[INSIDE]) == (140, 2)


COLUMNS = yaml.safe_load(Path(__file__).with_name("columns.yaml").read_text())["cases"]


@pytest.mark.parametrize("case", COLUMNS, ids=str)
def test_columns_by_other_names(case, tmp_path):
    (example,) = read(write(tmp_path / "a.jsonl", case["row"]), columns=case["columns"])
    assert [text for text, _ in example.answers] == case["texts"]


def test_a_column_that_is_named_is_in_some_row(tmp_path):
    path = write(tmp_path / "a.jsonl", {**ASKED, "answer": "tar"})
    with pytest.raises(UserError, match="a.jsonl: no column 'Titel' .there: question, context, a"):
        read(path, columns={"title": "Titel"})
    write(path, {**ASKED, "answerable": "no"})
    source = open_source(str(path), "test", Path("cache"), Reading(columns={"answers": "Labels"}))
    assert len(list(read_examples(source, answers_needed=False))) == 1


REFUSED = yaml.safe_load(Path(__file__).with_name("refused.yaml").read_text())["cases"]


@pytest.mark.parametrize("name", REFUSED)
def test_a_fault_is_one_line_with_its_place(name, tmp_path):
    case = REFUSED[name]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in case["rows"]))
    with pytest.raises(UserError) as error:
        read(path)
    assert str(error.value).startswith(f"{path}: ")
    assert case["says"] in str(error.value)


def test_ten_faults_are_listed_or_left_out(tmp_path):
    rows = [{**ASKED, "answer": answer} for answer in ["tar", *["oil"] * 12, "salt"]]
    path = write(tmp_path / "a.csv", *rows)
    with pytest.raises(UserError) as error:
        read(path)
    problems = str(error.value).split("; ")
    assert problems[1] == "line 4: question 3: answer 'oil' is not in its context"
    assert len(problems) == 11
    assert "data.skip_invalid: true" in problems[10]

    left_out = []
    source = open_source(str(path), "train", tmp_path)
    examples = list(read_examples(source, left_out=left_out))
    assert [example.id for example in examples] == ["1", "14"]
    assert [(fault.name, fault.kind) for fault in left_out[::11]] == [
        ("2", "answer not found"),
        ("13", "answer not found"),
    ]
    # A limit is reached before a fault is seen.
    assert [example.id for example in itertools.islice(read_examples(source), 1)] == ["1"]
