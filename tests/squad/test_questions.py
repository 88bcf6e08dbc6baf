"""Questions of every shape of file, of the hub, official files and the world; every fault."""

import copy
import hashlib
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detalbert.errors import UserError
from detalbert.reading.json_values import json_rows
from detalbert.squad import sources
from detalbert.squad.question_stream import LeftOut
from detalbert.squad.rows import MAX_CONTEXT
from detalbert.squad.sources import open_source, read_examples, read_questions
from detalbert.squad.windows import Example
from detalbert.squad.world import generate
from tests.conftest import max_examples
from tests.fakes.http import AnswerServer, Request

KNOWN = {"id": "a", "question": "Who?", "answers": [{"text": "Ada", "answer_start": 0}]}
NONE = {"id": "b", "question": "Why?", "answers": [], "is_impossible": True}
OPEN = {"id": "c", "question": "Where?"}


def document(*questions: Any, context: str | None = "Ada wrote it.") -> dict[str, Any]:
    """Return a SQuAD file of one paragraph."""
    paragraph = {"context": context, "qas": list(questions)}
    return {"data": [{"title": "T", "paragraphs": [paragraph]}]}


def write(path: Path, value: Any) -> Path:
    text = value if isinstance(value, str) else json.dumps(value)
    path.write_text(text, encoding="utf-8")
    return path


def read(name: Any, **options: Any) -> list[Example]:
    return read_examples(open_source(str(name), "train", cache_dir=Path()), **options)


def left_out(name: Any) -> tuple[list[Example], dict[str, int]]:
    """Return the questions of a file without its faulty ones, and these by kind."""
    faulty: list[LeftOut] = []
    examples = read(name, left_out=faulty)
    return examples, Counter(question.kind for question in faulty)


def test_training_and_predicting_read_alike(tmp_path: Path) -> None:
    path = write(tmp_path / "dev.json", {"version": "2.0", **generate("validation")})

    expected = read(path)

    assert len(expected) == 600
    assert list(read_questions(path)) == expected
    assert left_out(path) == (expected, {})
    assert read(path, limit=7) == expected[:7]


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)
before = st.dictionaries(st.text().filter(lambda x: x != "data"), values, max_size=3)


@max_examples(200)
@given(before, st.lists(values, max_size=5), st.integers(1, 30), st.sampled_from([None, 1]))
def test_any_json_is_read(before: dict, data: list, size: int, indent: int | None) -> None:
    # A second "data", deeper and after the first, is not read.
    content = {**before, "data": data, "after": [1, {"data": 2}]}
    text = json.dumps(content, indent=indent).encode()
    blocks = [text[begin : begin + size] for begin in range(0, len(text), size)]
    assert list(json_rows("x", blocks)) == data
    with pytest.raises(UserError, match="x: line [0-9]+ is not JSON"):
        list(json_rows("x", [text[:-1]]))


def repeat_id(paragraph: dict[str, Any]) -> None:
    paragraph["qas"][1]["id"] = "a"


def misplace_answer(paragraph: dict[str, Any]) -> None:
    paragraph["qas"][0]["answers"][0]["answer_start"] = 1


def remove_text(paragraph: dict[str, Any]) -> None:
    del paragraph["qas"][0]["answers"][0]["text"]


def remove_answers(paragraph: dict[str, Any]) -> None:
    paragraph["qas"][0]["answers"] = []


def blank_question(paragraph: dict[str, Any]) -> None:
    paragraph["qas"][0]["question"] = " "


def text_for_question(paragraph: dict[str, Any]) -> None:
    paragraph["qas"][0] = "Where?"


def blank_context(paragraph: dict[str, Any]) -> None:
    paragraph["context"] = " \n"
    paragraph["qas"].pop()


FAULTS = {
    "duplicate id": repeat_id,
    "misplaced answer": misplace_answer,
    "bad answer": remove_text,
    "no answer": remove_answers,
    "empty question": blank_question,
    "not a question": text_for_question,
    "empty context": blank_context,
}


@pytest.mark.parametrize("kind", FAULTS)
def test_a_faulty_question_is_named_or_skipped(tmp_path: Path, kind: str) -> None:
    content = copy.deepcopy(document(KNOWN, NONE))
    paragraphs = content["data"][0]["paragraphs"]
    faultless = copy.deepcopy(paragraphs[0])
    faultless["qas"] = [{**KNOWN, "id": "d"}]
    FAULTS[kind](paragraphs[0])
    paragraphs.append(faultless)
    path = write(tmp_path / "faulty.json", content)

    with pytest.raises(UserError, match="faulty.json: .*; fix it") as error:
        read(path)

    problem = str(error.value)
    assert "\n" not in problem
    name = "1" if kind == "not a question" else "a"  # without an id it has a number
    assert f"question {name}:" in problem
    # Left out, all questions without an answer could be missing: a file without answers.
    assert ("data.skip_invalid: true" in problem) == (kind != "no answer")

    examples, faults = left_out(path)
    assert examples[-1].id == "d"
    assert faults == {kind: 1}


def one(context: str | None = "Ada wrote it.", **changes: Any) -> str:
    """Return a SQuAD file of one question."""
    return json.dumps(document({**OPEN, **changes}, context=context))


BAD = {
    "text.json": (
        "Once upon a time",
        "no rows of JSON (it begins with 'Once upon a time'); correct",
    ),
    "list.json": ("[1]", "row 1 is no mapping; correct or delete it"),
    "other.json": ('{"rows": []}', "no column 'question' (there: rows); add it"),
    "cut.json": ('{"data": [\n\n{"paragraphs": [', "line 3 is not JSON"),
    "word.json": ('{"data": [\n{"a": b},\n2,\n3,\n4]}', "line 2 is not JSON"),
    "comma.json": ('{"data": [{"paragraphs": []},]}', "line 1 is not JSON"),
    "more.json": ('{"data": []} {}', "row 1: no column 'question'"),
    "deep.json": ('{"data": ' + "[" * 100_000, "recursion depth"),
    "digits.json": ('{"data": [' + "1" * 10_000 + "]}", "line 1 is not JSON (Exceeds the limit"),
    "paragraph.json": (
        '{"data": [{"paragraphs": [7]}]}',
        "row 1: not of SQuAD's shape (no list 'qas')",
    ),
    "empty.json": ('{"data": []}', "no question in it"),
    "null.json": (one(context=None), "question c: its context is empty"),
    "half.json": (one(question="\ud800"), "question or context is not UTF-8"),
    "id.json": (one(id="\ud800"), "is not UTF-8 text"),
    "long.json": (one(context="x" * (MAX_CONTEXT + 1)), "has 1,000,001 characters, 1,000,000 at"),
    "answers.jsonl": (
        json.dumps({**OPEN, "context": "x", "answers": {"text": 5}}),
        "answer '5' is not in its context",
    ),
    "line.jsonl": ('{"question": "a", "context": "b"}\n{', "line 2 is not JSON"),
    "empty.jsonl": ("\n\n", "no question in it"),
    "field.csv": ("question,context\nWho?," + "x" * (MAX_CONTEXT + 2), "field larger than"),
    "context.csv": ("question,context\nWho?," + "x" * (MAX_CONTEXT + 1), "1,000,000 at most"),
    "question.csv": ("question,context\n,Ada\n", "line 2: question 1: its question is empty"),
    "latin.csv": ('{"data": "\udce9"}\n', "not UTF-8 at byte 10"),
}
# Reported in training, too, where faults of questions are skipped.
OF_FILES = {
    "list.json",
    "paragraph.json",
    "deep.json",
    "digits.json",
    "latin.csv",
}


@pytest.mark.parametrize("name", BAD)
def test_faults(name: str, tmp_path: Path) -> None:
    text, message = BAD[name]
    path = tmp_path / name
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(UserError, match=f"^{re.escape(str(path))}.*{re.escape(message)}"):
        list(read_questions(path))
    if name in OF_FILES:
        with pytest.raises(UserError, match=re.escape(message)):
            left_out(path)


def downloaded(cache: Path) -> list[str]:
    """Return the files beside locks, and the mark of a file that was compared with its sum."""
    names = [path.name for path in cache.iterdir()]
    return [name for name in names if not name.endswith(".lock") and ".checked-" not in name]


def test_an_official_file_is_downloaded_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = json.dumps(document(KNOWN, NONE)).encode()
    served = {"/dev-v2.0.json": body}

    def respond(request: Request) -> tuple[int, bytes | None]:
        status = 200 if request.path in served else 404
        return status, served.get(request.path)

    digest = hashlib.sha256(body).hexdigest()
    monkeypatch.setitem(sources.OFFICIAL_SHA256, "dev-v2.0.json", digest)
    monkeypatch.chdir(tmp_path)
    cache = tmp_path / "new" / "cache"
    other = tmp_path / "other"
    with AnswerServer(respond) as site:
        monkeypatch.setattr(sources, "OFFICIAL_URL", site.url)
        first = open_source("dev-v2.0.json", "validation", cache)

        # From now on the site has other bytes: what is in the cache is not downloaded again.
        served["/dev-v2.0.json"] = b"x" * len(body)
        again = open_source("dev-v2.0.json", "validation", cache)
        assert first == again
        assert len(read_examples(first)) == 2

        with pytest.raises(UserError, match="SHA-256 is not the official one"):
            open_source("dev-v2.0.json", "validation", other)
        with pytest.raises(UserError, match="train-v2.0.json: not here, and fetching"):
            open_source("train-v2.0.json", "train", other)
    assert downloaded(cache) == ["dev-v2.0.json"]
    assert downloaded(other) == []


# Published numbers and cached windows belong to these bytes.
WORLD_SHA256 = {
    "train": "26a3caaae489164c765a82d0bb241de1c8405bd33464399919050f42f9946512",
    "validation": "7a7a19a8af513f516a36f9e27a07a0bea924e587faa392a5a011f9874faa1e36",
}


@pytest.mark.parametrize("split", WORLD_SHA256)
def test_the_bytes_never_change_and_the_seed_matters(split: str) -> None:
    world = json.dumps(generate(split))
    assert hashlib.sha256(world.encode()).hexdigest() == WORLD_SHA256[split]

    small = generate(split, seed=3, paragraphs=20)
    assert json.dumps(generate(split, seed=3, paragraphs=20)) == json.dumps(small)
    assert json.dumps(generate(split, seed=4, paragraphs=20)) != json.dumps(small)
