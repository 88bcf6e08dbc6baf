"""Public data sets and exports of annotation tools, in the shapes in which they are published."""

import bz2
import csv
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from detalbert.errors import UserError
from detalbert.reading.notes import Notes
from tests.reading.files import json_lines, pack, parquet, read_documents, read_questions, table
from tests.reading.test_question_files import CONTEXT, FIRST, SECOND, WHAT, squad
from tests.reading.test_text_files import LINES, ROWS, TEXTS, write

POTTERY = ("pottery", FIRST)
SECOND_POTTERY = ("pottery", SECOND)
GERMAN = {"question": "Frage", "context": "Text", "answer": "Antwort"}
PRICES = "Es kostet 3,5 Euro; gestern 2,50."
FORM = {"Timestamp": "2024/03/09 3:04:05 PM GMT+1", "Question": WHAT, "Context": CONTEXT}


def labelled(name: str, text: str, start: int, **keys: Any) -> dict[str, Any]:
    """A question of SQuAD 1.1, without is_impossible."""
    answer = {"text": text, "answer_start": start, **keys}
    return {"id": name, "question": WHAT, "answers": [answer]}


def in_chinese(answer: str, context: str) -> str:
    return squad(labelled("a", answer, context.index(answer), id="1"), context=context)


ROW = {"question": WHAT, "context": CONTEXT}
MRQA_ANSWER = {"text": "Pottery", "char_spans": [[SECOND, SECOND + 6]], "token_spans": [[14, 14]]}
MRQA_QUESTION = {"qid": "q1", "question": WHAT, "answers": ["pottery"]}
MRQA = json_lines(
    [
        {"header": {"dataset": "SQuAD", "split": "train"}},
        {
            "id": "",
            "context": CONTEXT,
            "qas": [{**MRQA_QUESTION, "detected_answers": [MRQA_ANSWER]}],
            "context_tokens": [["The", 0]],
        },
    ]
)
# The same in the columns of the hub.
MRQA_COLUMNS = {
    "text": ["Pottery"],
    "char_spans": [{"start": [SECOND], "end": [SECOND + 6]}],
    "token_spans": [{"start": [14], "end": [14]}],
}
MRQA_ROW = {**MRQA_QUESTION, "context": CONTEXT, "detected_answers": MRQA_COLUMNS}
TASK = {
    "text": CONTEXT,
    "question": WHAT,
    "_input_hash": 1,
    "_task_hash": 2,
    "spans": [{"start": FIRST, "end": FIRST + 7, "token_start": 5, "label": "ANSWER"}],
    "answer": "accept",
}
PRODIGY = [TASK, {**TASK, "answer": "reject"}, {**TASK, "spans": []}, {**TASK, "answer": "ignore"}]
BROKEN = 'The "Zanto"\nwas loaded\r\nwith pottery.'
CMRC = {
    "context_id": "T0",
    "context_text": "范廷颂枢机。",
    "qas": [{"query_text": "谁?", "query_id": "T0_Q0", "answers": ["范廷颂"]}],
}

# Name of a file, its content, names of columns, and the answers of its questions by id.
QUESTIONS: dict[str, tuple[str, str | bytes, dict[str, str], dict[str, Any]]] = {
    "Excel in German": (
        "a.csv",
        table([{"Frage": WHAT, "Text": PRICES, "Antwort": "3,5", "Punkte": "1,5"}], ";").encode(
            "utf-8-sig"
        ),
        GERMAN,
        {"1": (("3,5", 10),)},
    ),
    "Google Forms": (
        "a.csv",
        table([{**FORM, "Answer": "loaded", "Answer 2": ""}], quoting=csv.QUOTE_ALL),
        {},
        {"1": (("loaded", 14),)},
    ),
    "Kaggle, with line breaks in cells": (
        "a.csv",
        table(
            [
                {
                    "id": "k",
                    "context": BROKEN,
                    "question": WHAT,
                    "answer_text": "pottery",
                    "answer_start": BROKEN.index("pottery"),
                    "language": "en",
                }
            ]
        ),
        {},
        {"k": (("pottery", BROKEN.index("pottery")),)},
    ),
    **{
        f"a position named {name}": (
            "a.jsonl",
            json_lines(
                [
                    {**ROW, "id": "a", "answer": "pottery", name: SECOND},
                    {**ROW, "id": "b", "answers": [{"text": "pottery", name: str(SECOND)}]},
                    {**ROW, "id": "c", "answers": {"text": ["pottery"], name: [SECOND]}},
                ]
            ),
            {},
            dict.fromkeys("abc", (SECOND_POTTERY,)),
        )
        for name in ("start_idx", "answer_pos", "Answer char-start", "startPositions", "ans.start")
    },
    **{
        f"a text named {name}": (
            "a.jsonl",
            json_lines(
                [
                    {**ROW, "id": "a", "answers": [{name: "pottery", "answer_start": SECOND}]},
                    {**ROW, "id": "b", "answers": {name: ["pottery"], "answer_start": [SECOND]}},
                    {**ROW, "id": "c", "answers": json.dumps({name: "pottery", "start": SECOND})},
                ]
            ),
            {},
            dict.fromkeys("abc", (SECOND_POTTERY,)),
        )
        for name in ("answer_text", "answerText", "Answer text")
    },
    "MRQA": ("a.jsonl.gz", gzip.compress(MRQA.encode()), {}, {"q1": (SECOND_POTTERY,)}),
    "MRQA on the hub": ("a.parquet", parquet([MRQA_ROW]), {}, {"q1": (SECOND_POTTERY,)}),
    "Prodigy": ("a.jsonl", json_lines(PRODIGY), {"context": "text"}, {"1": (POTTERY,), "2": ()}),
    "Prodigy, its spans named": (
        "a.jsonl",
        json_lines(PRODIGY),
        {"context": "text", "answers": "spans"},
        {"1": (POTTERY,), "2": ()},
    ),
    "Prodigy, answers typed in": (
        "a.jsonl",
        json_lines([{**TASK, "spans": [], "typed": "loaded"}]),
        {"context": "text", "answer": "typed"},
        {"1": (("loaded", 14),)},
    ),
    "SQuAD 1.1": ("a.json", squad(labelled("a", "pottery", SECOND)), {}, {"a": (SECOND_POTTERY,)}),
    "lines of which some lack a named column": (
        "a.jsonl",
        json_lines([{**ROW, "id": "a", "reply": "loaded"}, {**ROW, "id": "b", "no answer": True}]),
        {"answer": "reply"},
        {"a": (("loaded", 14),), "b": ()},
    ),
    "KorQuAD": ("a.json", in_chinese("도자기", "배에는  도자기를."), {}, {"a": (("도자기", 5),)}),
    "CMRC 2018, by names of columns": (
        "a.json",
        json.dumps([CMRC]),
        {"context": "context_text", "question": "query_text", "id": "query_id"},
        {"T0_Q0": (("范廷颂", 0),)},
    ),
    "rows by their ids": (
        "a.json",
        json.dumps({name: {"question": WHAT, "context": CONTEXT, "answer": ""} for name in "ab"}),
        {},
        {"a": (), "b": ()},
    ),
    "Numbers, with doubled quotes": (
        "a.tsv",
        'question\tcontext\tanswer\nWhat?\t"He said ""pottery"" twice."\tpottery\n',
        {},
        {"1": (("pottery", 9),)},
    ),
    "Sheets, with empty columns": (
        "a.csv",
        f'question,context,answer,,\n{WHAT},"{CONTEXT}",loaded,,\n',
        {},
        {"1": (("loaded", 14),)},
    ),
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_questions_as_they_are_published(name: str, tmp_path: Path) -> None:
    file, content, columns, expected = QUESTIONS[name]
    path = write(tmp_path / file, content)
    examples = read_questions(path, columns=columns)
    assert {example.id: example.answers for example in examples} == expected


def test_what_an_annotator_did_not_accept_is_told(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", json_lines(PRODIGY))
    notes = Notes()
    assert len(read_questions(path, notes, columns={"context": "text"})) == 2
    text = "tasks of Prodigy are not accepted and are left out (the first: line 2)"
    assert notes.texts() == {text: 2}


def test_a_place_that_cuts_a_word_is_told(tmp_path: Path) -> None:
    """As an end that is the last character's, where the text is not there to compare with."""
    row = {"question": WHAT, "context": CONTEXT, "answers": [{"start": FIRST, "end": FIRST + 6}]}
    path = write(tmp_path / "a.jsonl", json_lines([row]))
    notes = Notes()
    (example,) = read_questions(path, notes)
    assert example.answers == (("potter", FIRST),)
    assert notes.counts == {"answers stand only inside a longer word": 1}


CAS = {"%TYPES": {}, "%FEATURE_STRUCTURES": [{"%ID": 1, "sofaString": CONTEXT}], "%VIEWS": {}}
HOTPOT = {"_id": "a", "answer": "yes", "question": WHAT, "context": [["A", ["Ada met Bo."]]]}
REFUSED: dict[str, tuple[str, str | bytes, str]] = {
    "INCEpTION's JSON": ("a.json", json.dumps(CAS), "no column 'question' (there: %TYPES, %FEAT"),
    "HotpotQA": ("a.json", json.dumps([HOTPOT]), "question 1: its context is no text but list"),
    "CMRC 2018": ("a.json", json.dumps([CMRC]), "question 1: it has no 'question'"),
    "doccano": (
        "a.jsonl",
        json_lines([{"question": WHAT, "context": CONTEXT, "label": [[26, 33, "answer"]]}]),
        "question 1: no answers and not marked is_impossible",
    ),
    "Excel in Latin-1": ("a.csv", "question\nKöln\n".encode("cp1252"), ": not UTF-8 at byte 10; "),
    "Excel, not in quotes": (
        "a.csv",
        f"question;context;answer\n{WHAT};{PRICES};3,5\n",
        "line 2: 4 cells under 3 names",
    ),
    "Excel, with a title": (
        "a.csv",
        f"Questions of March 2024;;\n;;\nquestion;context;answer\n{WHAT};A lute.;lute\n",
        "line 3: 3 cells under 1 names; fix it: a text with separators, quotes or line breaks",
    ),
    "MRQA without places": (
        "a.jsonl",
        MRQA.replace(f"[[{SECOND}, {SECOND + 6}]]", "[]"),
        "question q1: char_spans is []; write [[first character, last character]]",
    ),
    "MRQA with an end that is missing": (
        "a.jsonl",
        json_lines([MRQA_ROW]).replace(f"[{SECOND + 6}]", "[]"),
        "question q1: char_spans is {'start': [",
    ),
    "MRQA with a place without end": (
        "a.jsonl",
        json_lines([MRQA_ROW]).replace(f"[{SECOND}]", "[1e999]"),
        "question q1: char_spans is [(inf, ",
    ),
    "a cell with a mapping of numbers": (
        "a.csv",
        table([{**ROW, "answers": "{'text': ['pottery'], 1: 2}"}]),
        "answer \"{'text': ['pottery'], 1: 2}\" is not in its context",
    ),
    "MRQA with a place that is no list": (
        "a.jsonl",
        json_lines([MRQA_ROW | {"detected_answers": {"text": ["Pottery"], "char_spans": 5}}]),
        "char_spans is 5; write [[first character, last character]]",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_questions_that_are_refused(name: str, tmp_path: Path) -> None:
    file, content, problem = REFUSED[name]
    path = write(tmp_path / file, content)
    with pytest.raises(UserError) as error:
        read_questions(path)
    message = str(error.value)
    assert message.startswith(str(path)) and problem in message and "\n" not in message


def lines_under(key: str, **more: Any) -> bytes:
    return json_lines([{key: text, **more} for text in TEXTS]).encode()


GUTENBERG = "\ufeffThe eBook of Ada\r\n\r\nAda met Bo.\r\nThey left.\r\n"
PILE = lines_under("text", meta={"pile_set_name": "Pile-CC"})

# Files of a folder, keys of `read_documents`, and the documents if they are not TEXTS.
CORPORA: dict[str, tuple[dict[str, str | bytes], dict[str, Any], list[str]]] = {
    "wikiextractor, packed": ({"AA/wiki_00.bz2": bz2.compress(LINES.encode())}, {}, TEXTS),
    "OSCAR": (
        {"de_part_1.jsonl": lines_under("content", warc_headers={"a": 1})},
        {"text_key": "content"},
        TEXTS,
    ),
    "OSCAR of 2021": (
        {"de_part_1.txt.gz": gzip.compress(b"One.\nTwo.\n\nThree.\n")},
        {"article": "blank_line"},
        ["One.\nTwo.", "Three."],
    ),
    "C4, with held-out files": (
        {
            "en/c4-train.00000-of-01024.json.gz": gzip.compress(LINES.encode()),
            "en/c4-validation.00000-of-00008.json.gz": gzip.compress(b'{"text": "out"}\n'),
        },
        {},
        TEXTS,
    ),
    "The Pile, with held-out files": (
        {
            "train/00.jsonl.zst": pack([PILE], "zstd"),
            "val.jsonl.zst": pack([b'{"text": "out"}\n'], "zstd"),
            "test.jsonl.zst": pack([b'{"text": "out"}\n'], "zstd"),
        },
        {},
        TEXTS,
    ),
    "Project Gutenberg": (
        {"pg1.txt": GUTENBERG},
        {},
        ["The eBook of Ada", "Ada met Bo.", "They left."],
    ),
    "Project Gutenberg, by paragraphs": (
        {"pg1.txt": GUTENBERG},
        {"article": "blank_line"},
        ["The eBook of Ada", "Ada met Bo.\r\nThey left."],
    ),
    "Spark": ({"part-00000": LINES, "_SUCCESS": ""}, {}, TEXTS),
    "a table with quotes": ({"a.tsv": 'id\ttext\n1\tHe "said\n'}, {}, ['He "said']),
}


@pytest.mark.parametrize("name", CORPORA)
def test_corpora_as_they_are_published(name: str, tmp_path: Path) -> None:
    contents, keys, expected = CORPORA[name]
    for file, content in contents.items():
        write(tmp_path / "corpus" / file, content)
    assert read_documents(tmp_path / "corpus", **keys) == expected


def test_files_that_may_be_held_out_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A folder of which only some files are named after splits is read whole."""
    for number, name in enumerate(("00.jsonl", "01.jsonl", "val.jsonl", "test.jsonl")):
        write(tmp_path / "pile" / name, LINES + "\n" * number)  # no two files are equal
    assert read_documents(tmp_path / "pile") == TEXTS * 4
    told = "2 files are trained on that may be held-out data: test.jsonl, val.jsonl"
    assert f"data.text: {told}" in caplog.text
    caplog.clear()
    assert read_documents(tmp_path / "pile" / "0*") == TEXTS * 2
    assert caplog.text == ""


NO_CORPUS: dict[str, tuple[str, str | bytes, str]] = {
    "OSCAR without its key": (
        "a.jsonl",
        lines_under("content"),
        "has no 'text' (there: content); correct it, or name the key of the text in text_key",
    ),
    "RTF": ("a.rtf", "{\\rtf1\\ansi Hello}", ": RTF; save it as plain text"),
    "a document of Word": (
        "a.docx",
        b"PK\x03\x04\x14\0\6\0\x08\0\0\0!\0[Content_Types].xml",
        "save a Word document as plain text",
    ),
    "a list of texts": ("a.json", json.dumps(TEXTS), "row 1 is no mapping with a 'text'"),
    "lines of texts": ("a.jsonl", json_lines(TEXTS), "no rows of JSON (it begins with '\"The Za"),
    "a nested text": (
        "a.jsonl",
        json_lines([{"document": row} for row in ROWS]),
        "(there: document)",
    ),
}


@pytest.mark.parametrize("name", NO_CORPUS)
def test_corpora_that_are_refused(name: str, tmp_path: Path) -> None:
    file, content, problem = NO_CORPUS[name]
    path = write(tmp_path / "corpus" / file, content)
    with pytest.raises(UserError) as error:
        read_documents(path)
    message = str(error.value)
    assert message.startswith(str(path)) and problem in message and "\n" not in message


def test_files_without_a_known_ending_are_named_by_a_pattern(tmp_path: Path) -> None:
    folder = tmp_path / "wikitext"
    write(folder / "wiki.train.raw", " = Ada = \n Ada met <unk> . \n")
    with pytest.raises(UserError, match=r"no file of data below .*, or name its files: .*text/\*$"):
        read_documents(folder)
    assert read_documents(folder / "*") == ["= Ada =", "Ada met <unk> ."]
