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


def test_what_nobody_answered_is_told_from_what_has_no_answer(tmp_path: Path) -> None:
    path = write(tmp_path / "some.json", document(KNOWN, NONE, OPEN))
    assert [example.answers for example in read_questions(path)] == [(("Ada", 0),), (), None]


def test_rows(tmp_path: Path) -> None:
    rows = [
        {"question": "Who, then?", "context": 'Ada, "the first",\nwrote it.'},
        {"id": "x", "question": "¿Qué?", "context": "Ça va, 東京."},
    ]
    files = [write(tmp_path / "rows.jsonl", "\n".join(map(json.dumps, rows)) + "\n\n")]
    for name, delimiter in (("rows.csv", ","), ("semicolons.csv", ";"), ("tabs.tsv", "\t")):
        text = io.StringIO()
        writer = csv.DictWriter(text, ["id", "context", "question"], delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)
        files.append(tmp_path / name)
        files[-1].write_text(text.getvalue(), encoding="utf-8-sig", newline="")  # as a sheet saves
    for path in files:
        found = list(read_questions(path))
        assert [(e.id, e.question, e.context, e.answers) for e in found] == [
            ("1", *rows[0].values(), None),
            ("x", "¿Qué?", "Ça va, 東京.", None),
        ]


def test_rows_may_bring_answers_in_either_layout(tmp_path: Path) -> None:
    row = {"question": "Who?", "context": "Ada wrote it."}
    given_answers: list[Any] = [
        {"text": ["Ada"], "answer_start": [0]},
        [{"text": "Ada", "answer_start": 0}],
        {"text": [], "answer_start": []},
    ]
    rows = [json.dumps({**row, "answers": x}) for x in given_answers]
    path = write(tmp_path / "rows.jsonl", "\n".join(rows))
    found = [example.answers for example in read_questions(path)]
    assert found == [(("Ada", 0),), (("Ada", 0),), ()]


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@max_examples(200)
@given(
    before=st.dictionaries(st.text().filter(lambda x: x != "data"), values, max_size=3),
    data=st.lists(values, max_size=5),
    piece=st.integers(1, 30),
    indent=st.sampled_from([None, 1]),
)
def test_any_json_is_walked_as_the_library_parses_it(
    before: Any, data: Any, piece: int, indent: Any
) -> None:
    """However the text is cut into pieces: numbers, escapes and words are never read in part."""
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


BAD = {
    "text.json": ("Once upon a time", "not SQuAD JSON (no list 'data'"),
    "list.json": ("[1]", "not SQuAD JSON (no list 'data'"),
    "other.json": ('{"rows": []}', "not SQuAD JSON (no list 'data'"),
    "cut.json": ('{"data": [\n\n{"paragraphs": [', "line 3: "),
    "comma.json": ('{"data": [{"paragraphs": []},]}', "a comma with nothing after it"),
    "more.json": ('{"data": []} {}', "more text after its end"),
    "deep.json": ('{"data": ' + "[" * 100_000, "nested too deep"),
    "digits.json": ('{"data": [' + "1" * 10_000 + "]}", "not SQuAD JSON"),
    "article.json": ('{"data": [1]}', "article 0 has no list 'paragraphs'"),
    "paragraph.json": ('{"data": [{"paragraphs": [7]}]}', "article 0 has no list 'qas'"),
    "empty.json": ('{"data": []}', "no question in it"),
    "context.json": (json.dumps(document(OPEN, context=" ")), "question c: its context is empty"),
    "null.json": (json.dumps(document(OPEN, context=None)), "question c: its context is empty"),
    "twice.json": (json.dumps(document(OPEN, OPEN)), "question c: another one has this id"),
    "half.json": (json.dumps(document({**OPEN, "question": "\ud800"})), "question is not UTF-8"),
    "id.json": (json.dumps(document({**OPEN, "id": "\ud800"})), "is not UTF-8 text"),
    "long.json": (
        json.dumps(document(OPEN, context="x" * (MAX_CONTEXT + 1))),
        "the context has 1,000,001 characters, 1,000,000 at most",
    ),
    "moved.json": (
        json.dumps(document({**KNOWN, "answers": [{"text": "Bob", "answer_start": 0}]})),
        "answer 'Bob' is not at character 0",
    ),
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


@pytest.mark.parametrize("name", ["list", "article", "paragraph", "deep", "digits", "half"])
def test_training_refuses_them_too(name: str, tmp_path: Path) -> None:
    """A file of another shape even where single questions may be invalid."""
    text, message = BAD[f"{name}.json"]
    source = open_source(str(write(tmp_path / f"{name}.json", text)), "train", tmp_path)
    with pytest.raises(UserError, match=re.escape(message)):
        read_examples(source, skip_invalid=name != "half")


@pytest.mark.parametrize("name", ["latin.json", "latin.csv", "latin.jsonl"])
def test_not_utf8(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes('{"data": "é"}\n'.encode("latin-1"))
    with pytest.raises(UserError, match="not UTF-8 text"):
        list(read_questions(tmp_path / name))
