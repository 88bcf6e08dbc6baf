"""Files of questions as public data sets, sheets and annotation tools write them."""

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from detalbert.errors import UserError
from detalbert.reading.notes import Notes
from detalbert.squad.question_stream import REPEATED, LeftOut, file_examples
from detalbert.squad.sources import open_source
from detalbert.squad.windows import Example
from predict import parse_arguments
from tests.reading import files
from tests.reading.files import encode, json_lines, read_questions, table

CONTEXT = "The Zanto was loaded with pottery in 1912. The Belmira was loaded with pottery, too."
WHAT = "What was it loaded with?"
WHO = "Who built it?"
FIRST = CONTEXT.index("pottery")
SECOND = CONTEXT.rindex("pottery")
FLAT = {"id": "a", "question": WHAT, "context": CONTEXT}
NONE = {"id": "b", "question": WHO, "context": CONTEXT}
ANSWERS = {"text": ["pottery"], "answer_start": [FIRST]}
NO_ANSWERS: dict[str, Any] = {"text": [], "answer_start": []}
READ = [("a", (("pottery", FIRST),)), ("b", ())]
EMPTY = {"answers": NO_ANSWERS}
LAST = [("a", (("pottery", SECOND),)), ("b", ())]


def squad(*questions: dict[str, Any], context: str = CONTEXT, **keys: Any) -> str:
    """A document of SQuAD's shape."""
    paragraph = {"context": context, "qas": list(questions)}
    return json.dumps({"data": [{"title": "T", "paragraphs": [paragraph]}], **keys})


def asked(name: str, question: str, **keys: Any) -> dict[str, Any]:
    return {"id": name, "question": question, **keys}


def answered(start: Any, **keys: Any) -> list[dict[str, Any]]:
    return [{"text": "pottery", "answer_start": start, **keys}]


def flagged(yes: Any, no: Any) -> str:
    return squad(
        asked("a", WHAT, answers=answered(FIRST), is_impossible=no),
        asked("b", WHO, answers=[], is_impossible=yes),
    )


def placed(start: Any) -> str:
    none = asked("b", WHO, answers=[], is_impossible=True)
    return squad(asked("a", WHAT, answers=answered(start)), none)


def sheet(**cells: Any) -> list[dict[str, Any]]:
    """Two rows: one with the given cells, one with empty ones."""
    return [{**FLAT, **cells}, {**NONE, **dict.fromkeys(cells, "")}]


HUB_ROWS = [{**FLAT, "answers": ANSWERS}, {**NONE, "answers": NO_ANSWERS}]
TRUTHS = {
    "text": ("true", "false"),
    "digit": ("1", "0"),
    "word": ("yes", "no"),
    "letter of Postgres": ("t", "f"),
    "letter": ("Y", "N"),
}

# Answers whose place is beside them, with other keys than SQuAD's, or in a mapping of their own.
PLACED: dict[str, dict[str, Any]] = {
    "a list": {"answers": ["pottery"], "answer_start": SECOND},
    "lists": {"answers": ["pottery"], "answer_start": [SECOND]},
    "a mapping without": {"answers": {"text": ["pottery"]}, "answer_start": SECOND},
    **{
        f"a column {name}": {"answer": "pottery", name: SECOND}
        for name in ("answerStart", "Answer_Start", "answer_offset", "start", "start_char")
    },
    "its end, too": {"answer": "pottery", "start": str(SECOND), "end": str(SECOND + 7)},
    "ours beside another": {"answer": "pottery", "start": 0, "answer_start": SECOND},
    "a single answer": {"answers": {"text": "pottery", "start": SECOND, "end": SECOND + 7}},
    "columns": {"answers": {"text": ["pottery"], "start": [SECOND], "end": [SECOND + 7]}},
    "its place beside it": {"answer": {"text": "pottery"}, "answer_start": SECOND},
}


@pytest.mark.parametrize("name", PLACED)
def test_a_place_is_never_ignored(name: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", json_lines([{**FLAT, **PLACED[name]}, {**NONE, **EMPTY}]))
    assert [(example.id, example.answers) for example in read_questions(path)] == LAST


# The name of a file, its content, and its questions.
FILES: dict[str, tuple[str, str | bytes, list[Any]]] = {
    **{f"is_impossible: {name}": ("a.json", flagged(*pair), READ) for name, pair in TRUTHS.items()},
    **{
        f"{name}: {no}": (
            "a.csv",
            table([{**FLAT, "answer": "pottery", name: yes}, {**NONE, "answer": "1912", name: no}]),
            READ,
        )
        for name, yes, no in (
            ("answerable", True, False),
            ("is_answerable", "Y", "N"),
            ("has_answer", 1, 0),
            ("isImpossible", "f", "t"),
            ("no_answer", False, True),  # of DuoRC
        )
    },
    "answer_start: float as text": ("a.json", placed("26.0"), READ),
    "chaii": ("a.csv", table(sheet(answer_text="pottery", answer_start=SECOND)), LAST),
    "flat lines": (
        "a.jsonl",
        json_lines([{**FLAT, "answer": "pottery", "answer_start": SECOND}, {**NONE, "answer": ""}]),
        LAST,
    ),
    "flat lines with NaN": (
        "a.jsonl",
        json_lines(
            [
                {**FLAT, "answer": "pottery", "answer_start": float(SECOND)},
                {**NONE, "answer": float("nan"), "answer_start": float("nan")},
            ]
        ),
        LAST,
    ),
    "pandas' lines": ("a.json", json_lines(HUB_ROWS), READ),
    "pandas' records": ("a.json", json.dumps(HUB_ROWS), READ),
    "SQuAD-it": ("a.json.gz", gzip.compress(flagged(True, False).encode()), READ),
    "capitals": (
        "a.csv",
        f'Id,Question,Context,Answer\na,{WHAT},"{CONTEXT}",pottery\nb,{WHO},"{CONTEXT}",\n',
        READ,
    ),
    "Excel's separator": ("a.csv", "sep=;\r\n" + table(sheet(answer="pottery"), ";"), READ),
    "Excel's Unicode text": (
        "a.txt",
        encode(table(sheet(answer="pottery"), "\t"), "utf-16-le"),
        READ,
    ),
    "pandas' mapping": (
        "a.csv",
        table([{**row, "answers": str(row["answers"])} for row in HUB_ROWS]),
        READ,
    ),
    "pandas' arrays": (
        "a.csv",
        table(
            [
                {
                    **FLAT,
                    "answers": "{'text': array(['pottery'], dtype=object), "
                    "'answer_start': array([26], dtype=int32)}",
                },
                {**NONE, "answers": "{'text': array([], dtype=object), 'answer_start': array([])}"},
            ]
        ),
        READ,
    ),
    "SQuAD 2.0 by json_normalize, in a table": (
        "a.csv",
        table([row | {"answers": "['pottery']", "answer_start": "[26]"} for row in [FLAT]])
        + table([row | {"answers": "[]", "answer_start": "[]"} for row in [NONE]]).partition("\n")[
            2
        ],
        READ,
    ),
    "SQuAD 2.0 by json_normalize, in Parquet": (
        "a.parquet",
        files.parquet(
            [
                {**FLAT, "answers": ["pottery"], "answer_start": [FIRST]},
                {**NONE, "answers": [], "answer_start": []},
            ]
        ),
        READ,
    ),
    "a printed array": (
        "a.csv",
        table(
            [
                {
                    **FLAT,
                    "answers": "['pottery'\n \"pottery\"]",
                    "answer_start": f"[ {FIRST} {SECOND}]",
                },
                {**NONE, "answers": "[]", "answer_start": "[]"},
            ]
        ),
        [("a", (("pottery", FIRST), ("pottery", SECOND))), ("b", ())],
    ),
    "no answers beside one": (
        "a.jsonl",
        json_lines([{**FLAT, **EMPTY, "answer": "pottery"}, {**NONE, **EMPTY, "answer": ""}]),
        READ,
    ),
    "a place in thousands": (
        "a.csv",
        table(
            [
                {**row, "context": "x " * 600 + CONTEXT}
                for row in sheet(answer="pottery", answer_start="1,226")
            ]
        ),
        [("a", (("pottery", 1226),)), ("b", ())],
    ),
    "Markdown": (
        "a.md",
        "| id | question | context | answer |\n|---|:---|---:| --- |\n"
        f"| a | {WHAT} | {CONTEXT} | 1912 |\n| b | {WHO} | {CONTEXT} | |\n",
        [("a", (("1912", CONTEXT.index("1912")),)), ("b", ())],
    ),
    "a blank answer": (
        "a.jsonl",
        json_lines([HUB_ROWS[0], {**NONE, "answers": {"text": [""], "answer_start": [-1]}}]),
        READ,
    ),
    "an annotation tool": (
        "a.jsonl",
        json_lines(
            [
                {**FLAT, "answers": [{"start": FIRST, "end": FIRST + 7, "text": "pottery"}]},
                {**NONE, "answers": [{"text": ""}]},
            ]
        ),
        READ,
    ),
    "Haystack": (
        "a.json",
        squad(
            asked("a", WHAT, answers=answered(FIRST, answer_id=5), is_impossible=False),
            asked("b", WHO, answers=[{"text": "", "answer_start": 0}], is_impossible=True),
        ),
        READ,
    ),
    "guid": (
        "a.jsonl",
        json_lines(
            [
                {"guid": row["id"], "question": row["question"], "context": CONTEXT}
                | {"answers": row["answers"]}
                for row in HUB_ROWS
            ]
        ),
        READ,
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_as_it_is_written(name: str, tmp_path: Path) -> None:
    file, content, expected = FILES[name]
    path = write(tmp_path / file, content)
    notes = Notes()
    assert [(example.id, example.answers) for example in read_questions(path, notes)] == expected
    assert notes.counts.keys() <= {REPEATED}


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


UNLABELLED = {
    "an empty list": ("a.json", squad(asked("a", WHAT, answers=[], is_impossible=False))),
    "null": ("a.json", squad(asked("a", WHAT, answers=None, is_impossible=None))),
    "no key": ("a.json", squad(asked("a", WHAT))),
    "lines": ("a.jsonl", json_lines([FLAT])),
    "a table": ("a.csv", table([FLAT])),
    "Parquet": ("a.parquet", files.parquet([FLAT])),
    "Arrow": ("a.arrow", files.arrow([FLAT])),
}


def answer_file(path: Path, notes: Notes | None = None, **columns: str) -> list[Example]:
    """The questions of a file for prediction."""
    content = open_source(str(path), "validation", Path()).contents
    return list(file_examples(content, columns, notes=notes))


@pytest.mark.parametrize("name", UNLABELLED)
def test_questions_to_answer(name: str, tmp_path: Path) -> None:
    file, content = UNLABELLED[name]
    path = write(tmp_path / file, content)
    (example,) = answer_file(path)
    assert (example.id, example.answers) == ("a", None)
    # A table without a column of answers is told once, and not for every row.
    is_table = name in ("a table", "Parquet", "Arrow")
    problem = "no column 'answer'" if is_table else "question a: no answers and not marked"
    with pytest.raises(UserError, match=problem):
        read_questions(path)


def test_columns_of_bytes_are_texts(tmp_path: Path) -> None:
    row = {**FLAT, "answer": "pottery"}
    raw = {name: value.encode() for name, value in row.items()}
    of_texts = read_questions(write(tmp_path / "texts.parquet", files.parquet([row])))
    assert read_questions(write(tmp_path / "raw.parquet", files.parquet([raw]))) == of_texts


def test_answerable_decides_as_is_impossible_does(tmp_path: Path) -> None:
    row = {**FLAT, "answer": "pottery", "answerable": None}
    path = write(tmp_path / "a.jsonl", json_lines([row, {**row, "id": "b", "is_impossible": True}]))
    assert [example.answers for example in read_questions(path)] == [(("pottery", FIRST),), ()]


def marked(mark: str, count: int) -> list[dict[str, Any]]:
    rows = [{**NONE, "id": number, "answer": mark} for number in range(count)]
    return [{**FLAT, "answer": "pottery"}, *rows]


@pytest.mark.parametrize("mark", ["n/a", "-", "not mentioned", "none"])
def test_a_text_that_stands_for_no_answer_is_told(mark: str, tmp_path: Path) -> None:
    """The first ten rows in one go, with their number and the key that reads them."""
    path = write(tmp_path / "a.csv", table(marked(mark, 83)))
    with pytest.raises(UserError) as error:
        read_questions(path)
    message = str(error.value)
    assert message.startswith(f"{path}: line 3: question 0: ") and "and 73 more" in message
    assert message.count("is not in its context") == 10
    assert f"if {mark!r}, 83 times, means that there is none: data.no_answer: [{mark!r}]" in message
    assert "data.skip_invalid: true" in message
    examples = read_questions(path, no_answer=[mark])
    assert [len(example.answers or ()) for example in examples] == [1, *[0] * 83]
    left_out: list[LeftOut] = []
    assert len(read_questions(path, left_out=left_out)) == 1
    assert [question.name for question in left_out] == [str(number) for number in range(83)]


@pytest.mark.parametrize("mark", ["NA", "\\N", "NULL", "#N/A"])
def test_a_usual_mark_is_told_from_the_first_row_on(mark: str, tmp_path: Path) -> None:
    """As R, MySQL and Excel write it, in a text that has its letters within words."""
    path = write(tmp_path / "a.csv", table(marked(mark, 1) + marked("it isn't", 3)[1:]))
    with pytest.raises(UserError) as error:
        read_questions(path)
    # The cure is YAML that reads them.
    cure = re.search(r"means that there is none: data\.no_answer: (\[.*\]), or", str(error.value))
    assert cure is not None
    no_answer = yaml.safe_load(cure[1])
    assert set(no_answer) == {mark, "it isn't"}
    path = write(path, table(marked(mark, 1)))
    examples = read_questions(path, no_answer=no_answer)
    assert [len(example.answers or ()) for example in examples] == [1, 0]


def test_an_address_of_no_file_is_one_line(tmp_path: Path) -> None:
    address = f"file://{tmp_path}/a.csv"
    with pytest.raises(UserError, match=f"^data.train: {address}: no such file, or it is empty"):
        open_source(address, "train", tmp_path)


def test_names_of_columns_are_a_flag_of_prediction() -> None:
    command = ["--model", "a", "--data", "b.csv", "--columns", "question=Frage,context=Text"]
    assert parse_arguments(command).columns == {"question": "Frage", "context": "Text"}
    with pytest.raises(SystemExit):
        parse_arguments([*command[:-1], "questoin=Frage"])
