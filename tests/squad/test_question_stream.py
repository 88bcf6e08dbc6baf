"""Questions read one at a time: every shape of file, every cut of the text, every fault."""

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detalbert.errors import UserError
from detalbert.squad import json_stream, world
from detalbert.squad.question_stream import MAX_CONTEXT, read_questions
from detalbert.squad.sources import open_source, read_examples
from detalbert.squad.windows import Example
from tests.conftest import max_examples
from tests.fakes.questions import as_rows

KNOWN = {"id": "a", "question": "Who?", "answers": [{"text": "Ada", "answer_start": 0}]}
NONE = {"id": "b", "question": "Why?", "answers": [], "is_impossible": True}
OPEN = {"id": "c", "question": "Where?"}


def document(*questions: Any, context: Any = "Ada wrote it.") -> Any:
    return {"data": [{"title": "T", "paragraphs": [{"context": context, "qas": list(questions)}]}]}


def write(path: Path, value: Any) -> Path:
    path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
    return path


def test_squad_json_is_read_as_training_reads_it(tmp_path: Path) -> None:
    path = write(tmp_path / "dev.json", {"version": "2.0", **world.generate("validation")})
    expected, _ = read_examples(open_source(str(path), "validation", tmp_path))
    assert list(read_questions(path)) == expected and len(expected) == 600
    lines = write(tmp_path / "dev.jsonl", "\n".join(map(json.dumps, as_rows(expected))))
    assert read_examples(open_source(str(lines), "validation", tmp_path))[0] == expected


def test_rows(tmp_path: Path) -> None:
    rows = [
        {"question": "Who, then?", "context": 'Ada, "the first",\nwrote it.'},
        {"id": "x", "question": "¿Qué?", "context": "Ça va, 東京."},
    ]
    files = [write(tmp_path / "rows.jsonl", "\n".join(map(json.dumps, rows)) + "\n\n")]
    for name, delimiter in (("rows.csv", ","), ("semicolons.csv", ";"), ("tabs.tsv", "\t")):
        files.append(tmp_path / name)
        with files[-1].open("w", encoding="utf-8-sig", newline="") as file:  # as a sheet saves
            writer = csv.DictWriter(file, ["id", "context", "question"], delimiter=delimiter)
            writer.writeheader()
            writer.writerows(rows)
    for path in files:
        first = Example("1", "", rows[0]["context"], rows[0]["question"], None)
        second = Example("x", "", "Ça va, 東京.", "¿Qué?", None)
        assert list(read_questions(path)) == [first, second]


def test_answers_in_either_layout_and_what_nobody_answered(tmp_path: Path) -> None:
    path = write(tmp_path / "some.json", document(KNOWN, NONE, OPEN))
    assert [example.answers for example in read_questions(path)] == [(("Ada", 0),), (), None]
    columns = {"text": ["Ada"], "answer_start": [0]}
    layouts = (columns, KNOWN["answers"], {"text": [], "answer_start": []})
    row = {"question": "Who?", "context": "Ada wrote it."}
    rows = [json.dumps({**row, "answers": answers}) for answers in layouts]
    found = read_questions(write(tmp_path / "rows.jsonl", "\n".join(rows)))
    assert [example.answers for example in found] == [(("Ada", 0),), (("Ada", 0),), ()]


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


before = st.dictionaries(st.text().filter(lambda x: x != "data"), values, max_size=3)


@max_examples(200)
@given(before, st.lists(values, max_size=5), st.integers(1, 30), st.sampled_from([None, 1]))
def test_any_json_is_walked(before: Any, data: Any, piece: int, indent: Any) -> None:
    text = json.dumps({**before, "data": data, "after": [1, {"data": 2}]}, indent=indent)
    size, json_stream._PIECE = json_stream._PIECE, piece
    try:
        found = list(json_stream.JsonText("x", io.StringIO(text)).elements("data"))
        broken = json_stream.JsonText("x", io.StringIO(text[:-1]))
        with pytest.raises(UserError, match="x: not SQuAD JSON"):
            list(broken.elements("data"))
    finally:
        json_stream._PIECE = size
    assert found == data


def test_no_more_than_an_article_is_held(tmp_path: Path) -> None:
    article = document(KNOWN, context="Ada " + "x" * 50_000)["data"][0]
    text = json.dumps({"data": [article] * 200})
    walker = json_stream.JsonText("x", io.StringIO(text))
    held = [len(walker.text) for _ in walker.elements("data")]
    assert len(held) == 200 and max(held) < 300_000 < len(text) / 30


def one(context: Any = "Ada wrote it.", **changes: Any) -> str:
    return json.dumps(document({**OPEN, **changes}, context=context))


BAD = {
    "text.json": ("Once upon a time", "not SQuAD JSON (no list 'data'"),
    "list.json": ("[1]", "not SQuAD JSON (no list 'data'"),
    "other.json": ('{"rows": []}', "not SQuAD JSON (no list 'data'"),
    "cut.json": ('{"data": [\n\n{"paragraphs": [', "line 3: "),
    "word.json": ('{"data": [\n{"a": b},\n2,\n3,\n4]}', "line 2: "),
    "comma.json": ('{"data": [{"paragraphs": []},]}', "a comma with nothing after it"),
    "more.json": ('{"data": []} {}', "more text after its end"),
    "deep.json": ('{"data": ' + "[" * 100_000, "nested too deep"),
    "digits.json": ('{"data": [' + "1" * 10_000 + "]}", "not SQuAD JSON"),
    "article.json": ('{"data": [1]}', "article 0 has no list 'paragraphs'"),
    "paragraph.json": ('{"data": [{"paragraphs": [7]}]}', "article 0 has no list 'qas'"),
    "empty.json": ('{"data": []}', "no question in it"),
    "null.json": (one(context=None), "question c: its context is empty"),
    "half.json": (one(question="\ud800"), "question is not UTF-8"),
    "id.json": (one(id="\ud800"), "is not UTF-8 text"),
    "long.json": (one(context="x" * (MAX_CONTEXT + 1)), "has 1,000,001 characters, 1,000,000 at"),
    "answers.jsonl": (json.dumps({**OPEN, "context": "x", "answers": {"text": 5}}), "no answers"),
    "line.jsonl": ('{"question": "a", "context": "b"}\n{', "line 2 is not JSON"),
    "row.jsonl": ('{"question": "a"}', "line 1 is no mapping with question and context"),
    "empty.jsonl": ("\n\n", "no question in it"),
    "names.csv": ("q,c\n1,2\n", "not CSV with columns question and context"),
    "short.csv": ("question,context\nWho?\n", "question 1: its context is empty"),
    "field.csv": ("question,context\nWho?," + "x" * (MAX_CONTEXT + 2), "field larger than"),
    "context.csv": ("question,context\nWho?," + "x" * (MAX_CONTEXT + 1), "1,000,000 at most"),
    "question.csv": ("question,context\n,Ada\n", "question 1: it has no text"),
}


@pytest.mark.parametrize("name", BAD)
def test_faults(name: str, tmp_path: Path) -> None:
    text, message = BAD[name]
    path = write(tmp_path / name, text)
    with pytest.raises(UserError, match=f"^{re.escape(str(path))}.*{re.escape(message)}"):
        list(read_questions(path))
    if name in ("list.json", "article.json", "paragraph.json", "deep.json", "digits.json"):
        with pytest.raises(UserError, match=re.escape(message)):  # as training does
            read_examples(open_source(str(path), "train", tmp_path), skip_invalid=True)


def test_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "latin.csv"
    path.write_bytes('{"data": "é"}\n'.encode("latin-1"))
    with pytest.raises(UserError, match="not UTF-8 text"):
        list(read_questions(path))
