"""Files of questions that are refused: one line says where the fault is, and what to do."""

import gzip
from pathlib import Path
from typing import Any

import pytest

from detalbert.errors import UserError
from detalbert.reading.forms import recognise
from detalbert.reading.notes import Notes
from detalbert.reading.storage import list_files
from detalbert.settings import forms
from tests.reading.files import json_lines, read_questions, table
from tests.reading.test_question_files import (
    CONTEXT,
    FIRST,
    FLAT,
    SECOND,
    WHAT,
    answer_file,
    answered,
    asked,
    flagged,
    placed,
    sheet,
    squad,
    write,
)

QUESTIONS = f'Nr,Question,Context,Answer\n1,{WHAT},"{CONTEXT}",pottery\n'
TWICE = f'question,context,answer,answer\n{WHAT},"{CONTEXT}",pottery,\n'
REFUSED: dict[str, tuple[str, str | bytes, dict[str, Any], str]] = {
    "a header twice": ("a.csv", TWICE, {}, ": two columns are named 'answer'; rename one"),
    "an id misspelt": (
        "a.csv",
        QUESTIONS,
        {"columns": {"id": "Nr."}},
        ": no column 'Nr.' (there: Nr, Question, Context, Answer); correct data.columns: did you "
        "mean 'Nr'?",
    ),
    "an answer misspelt": (
        "a.csv",
        QUESTIONS,
        {"columns": {"id": "Nr", "answer": "Antwort"}},
        ": no column 'Antwort' (there: Nr, Question, Context, Answer); correct data.columns",
    ),
    "our column of answers misspelt": (
        "a.csv",
        f"question,context,anser\n{WHAT},{FIRST},lute\n{WHAT},{FIRST},lute\n",
        {},
        ": no column 'answer' (there: question, context, anser); add it, or name yours in "
        "data.columns: {answer: 'anser'}",
    ),
    "no column of answers": (
        "a.csv",
        f"question,context\n{WHAT},{FIRST}\n",
        {},
        ": no column 'answer' (there: question, context); add it, or name yours in data.columns: "
        "{answer: ...}",
    ),
    "a name misspelt beside ours": (
        "a.csv",
        table(sheet(answer="two", Antwort="pottery")),
        {"columns": {"answer": "antwort"}},
        ": no column 'antwort' (there: id, question, context, answer, Antwort); correct "
        "data.columns: did you mean 'Antwort'?",
    ),
    "a name misspelt beside the user's": (
        "a.csv",
        table(sheet(answer="two", Gold="pottery")),
        {"columns": {"answer": "Label", "id": "Gold"}},
        ": no column 'Label' (there: id, question, context, answer, Gold); correct data.columns",
    ),
    "a wrong place": (
        "a.csv",
        table(sheet(answer_text="pottery", answer_start=SECOND + 1)),
        {},
        ": line 2: question a: answer 'pottery' is not at character 72 (there: 'ottery,'); fix it",
    ),
    "a start of something else": (
        "a.csv",
        table(sheet(answer="pottery", start=3)),
        {},
        "not at character 3 (there: ' Zanto ') (column 'start' is read as answer_start: rename it "
        "if it is another)",
    ),
    "two columns of starts": (
        "a.csv",
        table(sheet(answer="pottery", start=3, answerStart=FIRST)),
        {},
        ": 'start' and 'answerStart' could be the answer_start; name it in data.columns: ",
    ),
    "words for answerable": (
        "a.csv",
        table(sheet(answer="pottery", answerable="partly")),
        {},
        "answerable is 'partly'; write true or false",
    ),
    "UTF-16 units": (
        "a.json",
        squad(asked("a", WHAT, answers=answered(FIRST + 1)), context=f"😀 {CONTEXT[2:]}"),
        {},
        "question a: answer 'pottery' is not at character 27 (there: 'ottery ')",
    ),
    "a place of words": ("a.json", placed("two"), {}, "question a: answer_start is 'two'; write a"),
    "a flag of words": ("a.json", flagged("maybe", "no"), {}, "is_impossible is 'maybe'; write tr"),
    "a mapping without a text": (
        "a.jsonl",
        json_lines([{**FLAT, "answers": {"minimal_answers_start_byte": [FIRST]}}]),
        {},
        ": line 1: question a: an answer needs a text",
    ),
    "doccano's labels": (
        "a.jsonl",
        json_lines([{**FLAT, "context": "26 to 33 answer", "label": [[26, 33, "answer"]]}]),
        {"columns": {"answers": "label"}},
        ": line 1: question a: an answer needs a text, and this is [26, 33, 'answer']",
    ),
    "Prodigy's verdict": (
        "a.jsonl",
        json_lines([{**FLAT, "question": "Do they accept?", "spans": [], "answer": "pottery"}]),
        {"columns": {"answers": "spans"}},
        ": line 1: question a: no answers and not marked is_impossible",
    ),
    "two columns of answers": (
        "a.csv",
        table(sheet(answer="", answer_text="pottery")),
        {},
        ": 'answer' and 'answer_text' could be the answer; name it in data.columns: {answer: ...}",
    ),
    "arrays without end": (
        "a.jsonl",
        json_lines([{**FLAT, "answers": "[array([" * 20_000}]),
        {},
        ": line 1: question a: answer '[array([",
    ),
    "more places than answers": (
        "a.jsonl",
        json_lines([{**FLAT, "answers": {"text": ["pottery"], "answer_start": [71, 26]}}]),
        {},
        ": line 1: question a: answer_start has 2 places for 1 answers",
    ),
    "an end outside": (
        "a.jsonl",
        json_lines([{**FLAT, "answers": [{"start": FIRST, "end": 999}]}]),
        {},
        ": line 1: question a: an answer ends at character 999, its context at 84",
    ),
    "a zip archive": ("a.xlsx", b"PK\x03\x04\x14\0", {}, ": a zip archive; unpack it"),
    "an old workbook": ("a.xls", b"\xd0\xcf\x11\xe0\xa1\xb1", {}, "; save it as .xlsx without one"),
    "a table as a workbook": (
        "a.xlsx",
        "question,context\n",
        {},
        ": text, and no xlsx file; rename",
    ),
    "a pointer": ("a.json", "version https://git-lfs.github.com/spec/v1\n", {}, "git lfs pull"),
    "a web page": ("a.json", "<!DOCTYPE html>\n<html>\n", {}, ": a web page; download the file"),
    "Latin-1": ("a.csv", f"{QUESTIONS}2,Où?,x,\n".encode("latin-1"), {}, ": not UTF-8 at byte 152"),
    "half a file": ("a.json.gz", gzip.compress(b'{"data"' * 999)[:50], {}, ": damaged, or cut off"),
    "no row": (
        "a.csv",
        "question,context,answer\n",
        {},
        ": no usable question in it; set data.train",
    ),
    "half a Parquet": ("a.parquet", "PAR1", {}, ": not a whole parquet file"),
    "a part of a ligature": (
        "a.csv",
        "question,context,answer\nWhat?,the \ufb01nal,inal\n",
        {},
        ": line 2: question 1: answer 'inal' is not in its context",
    ),
    "a number that is an id": (
        "a.csv",
        table([{**FLAT, "id": "2", "answer": ""}, {**FLAT, "id": "", "answer": ""}]),
        {},
        ": line 3: question 2: another one has this id, which is the number of a row without one: "
        "give each row an id",
    ),
    "an id that is a number": (
        "a.csv",
        table([{**FLAT, "id": "", "answer": ""}, {**FLAT, "id": "1", "answer": ""}]),
        {},
        ": line 3: question 1: another one has this id, which is the number of a row without one",
    ),
    "an id twice": ("a.csv", table(sheet(answer="")[:1] * 2), {}, "another one has this id"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_one_line_says_what_to_do(name: str, tmp_path: Path) -> None:
    file, content, keys, problem = REFUSED[name]
    path = write(tmp_path / file, content)
    with pytest.raises(UserError) as error:
        read_questions(path, **keys)
    message = str(error.value)
    assert message.startswith(str(path)) and problem in message and "\n" not in message


def test_a_column_misspelt_in_prediction_leaves_out_the_scores(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", QUESTIONS.replace("Answer", "Reply"))
    notes = Notes()
    (example,) = answer_file(path, notes, answer="Antwort")
    assert example.answers is None
    assert notes.texts() == {"data.columns.answer: there is no column 'Antwort', so no scores": 1}
    with pytest.raises(UserError, match=r"no column 'Nr\.'"):
        answer_file(path, id="Nr.")


def test_a_file_with_our_names_is_read_with_a_note(tmp_path: Path) -> None:
    """One file of a run may have the user's names, and another ours."""
    path = write(tmp_path / "a.csv", QUESTIONS.lower())
    notes = Notes()
    (example,) = read_questions(path, notes, columns={"answer": "Reply", "question": "question"})
    assert example.answers == (("pottery", FIRST),)
    kind = "names of data.columns are missing, and ours are read: 'Reply'"
    assert notes.counts[f"{kind} (there: nr, question, context, answer)"] == 1


@pytest.mark.parametrize(
    ("name", "text", "form"),
    [
        ("a.jsonl", '{"question": broken}\nalso broken\n', forms.JSON_LINES),
        ("a.json", '{"question": broken}\nalso broken\n', forms.JSON),
        ("a.json", '{"question": broken}\n{"question": "What?"}\n', forms.JSON_LINES),
    ],
)
def test_broken_json_is_of_the_form_that_name_and_lines_promise(
    name: str, text: str, form: str, tmp_path: Path
) -> None:
    (file,) = list_files(str(write(tmp_path / name, text)), "data.train")
    assert recognise(file).form == form
