"""Reading questions: shapes, faults, the hub layout, the official files' download."""

import copy
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import pytest

from detalbert.errors import UserError
from detalbert.squad import sources
from detalbert.squad.sources import open_source, read_examples
from tests.fakes.http import AnswerServer
from tests.fakes.questions import as_rows

ANSWER = {"text": "Bern", "answer_start": 14}
QUESTIONS = [
    {"id": "a", "question": "Where is Anna?", "answers": [ANSWER], "is_impossible": False},
    {"id": "b", "question": "Who is 40?", "answers": [], "is_impossible": True},
]
PARAGRAPHS = [{"context": "Anna lives in Bern.", "qas": QUESTIONS}]
DOCUMENT = {"version": "v2.0", "data": [{"title": "Towns", "paragraphs": PARAGRAPHS}]}


def write(path: Path, document: Any) -> str:
    path.write_text(json.dumps(document))
    return str(path)


def read(name: str, tmp_path: Path, **options: Any) -> Any:
    return read_examples(open_source(name, "train", tmp_path), **options)


def test_squad_2_and_1(tmp_path: Path) -> None:
    examples, faults = read(write(tmp_path / "a.json", DOCUMENT), tmp_path)
    assert [example.id for example in examples] == ["a", "b"]
    assert examples[0].answers == (("Bern", 14),) and examples[1].answers == ()
    assert faults == {}
    older = copy.deepcopy(DOCUMENT)
    del older["data"][0]["paragraphs"][0]["qas"][0]["is_impossible"]
    del older["data"][0]["paragraphs"][0]["qas"][1]
    assert read(write(tmp_path / "b.json", older), tmp_path)[0] == examples[:1]
    assert len(read(write(tmp_path / "a.json", DOCUMENT), tmp_path, limit=1)[0]) == 1


FAULTS = {
    "no id": lambda p: p["qas"][0].pop("id"),
    "duplicate id": lambda p: p["qas"][1].update(id="a"),
    "misplaced answer": lambda p: p["qas"][0]["answers"][0].update(answer_start=13),
    "bad answer": lambda p: p["qas"][0]["answers"][0].pop("answer_start"),
    "no answer": lambda p: p["qas"][0].update(answers=[]),
    "no text": lambda p: p["qas"][0].update(question=" "),
    "not a question": lambda p: p["qas"].__setitem__(0, "Where?"),
    "empty context": lambda p: (p.update(context=" \n"), p["qas"].pop()),
}


@pytest.mark.parametrize("kind", FAULTS)
def test_a_faulty_question_is_named_or_skipped(tmp_path: Path, kind: str) -> None:
    document = copy.deepcopy(DOCUMENT)
    (paragraph,) = document["data"][0]["paragraphs"]
    fine = {**copy.deepcopy(paragraph), "qas": [{**QUESTIONS[0], "id": "c"}]}
    FAULTS[kind](paragraph)
    document["data"][0]["paragraphs"].append(fine)
    name = write(tmp_path / "faulty.json", document)
    with pytest.raises(UserError, match="faulty.json: .*data.skip_invalid") as error:
        read(name, tmp_path)
    assert "\n" not in str(error.value)
    assert ("question a" in str(error.value)) == (kind not in ("no id", "not a question"))
    examples, faults = read(name, tmp_path, skip_invalid=True)
    assert examples[-1].id == "c" and faults == {kind: 1}


def test_a_missing_file_and_one_without_questions(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nowhere.json: no such file; set data.train"):
        open_source("nowhere.json", "train", tmp_path)
    with pytest.raises(UserError, match="data.train: 'no_such_set' is no file"):
        open_source("no_such_set", "train", tmp_path)
    with pytest.raises(UserError, match="empty.json: no usable question"):
        read(write(tmp_path / "empty.json", {"data": []}), tmp_path, skip_invalid=True)


def test_a_datasets_folder_gives_the_same_examples(tmp_path: Path) -> None:
    """`load_dataset` reads a folder as it reads a hub name."""
    examples, _ = read(write(tmp_path / "a.json", DOCUMENT), tmp_path)
    folder = tmp_path / "squad_like"
    folder.mkdir()
    datasets.Dataset.from_list(as_rows(examples)).to_parquet(folder / "train.parquet")
    assert read(str(folder), tmp_path)[0] == examples


def test_the_generated_world_is_read_like_a_file(tmp_path: Path) -> None:
    source = open_source("generated", "validation", tmp_path)
    examples, faults = read_examples(source)
    assert faults == {} and {bool(example.answers) for example in examples} == {True, False}
    assert source.fingerprint != open_source("generated", "train", tmp_path).fingerprint


@pytest.fixture
def official(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[bytearray]:
    """A server on loopback in the official site's place; yields the bytes it serves."""
    body = bytearray(json.dumps(DOCUMENT).encode())
    digest = hashlib.sha256(body).hexdigest()
    monkeypatch.setitem(sources.OFFICIAL_SHA256, "dev-v2.0.json", digest)
    monkeypatch.chdir(tmp_path)
    with AnswerServer(lambda r: (200 if r.path == "/dev-v2.0.json" else 404, bytes(body))) as site:
        monkeypatch.setattr(sources, "OFFICIAL_URL", site.url)
        yield body


def test_an_official_file_is_downloaded_once(official: bytearray, tmp_path: Path) -> None:
    cache = tmp_path / "new" / "cache"
    first = open_source("dev-v2.0.json", "validation", cache)
    official[:] = b"gone"
    again = open_source("dev-v2.0.json", "validation", cache)
    assert first == again and len(read_examples(first)[0]) == 2
    assert files(cache) == ["dev-v2.0.json"]


def test_a_wrong_download_leaves_nothing(official: bytearray, tmp_path: Path) -> None:
    official[:] = b"x" * len(official)
    cache = tmp_path / "cache"
    with pytest.raises(UserError, match="SHA-256 is not the official one"):
        open_source("dev-v2.0.json", "validation", cache)
    with pytest.raises(UserError, match="train-v2.0.json: not here, and fetching"):
        open_source("train-v2.0.json", "train", cache)
    assert files(cache) == []


def files(cache: Path) -> list[str]:
    return [path.name for path in cache.iterdir() if path.suffix != ".lock"]
