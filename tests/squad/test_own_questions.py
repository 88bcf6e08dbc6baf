"""Questions of one's own: tables, answers without positions, validation sets cut from a file."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data import SquadData
from detalbert.errors import UserError
from detalbert.reading.notes import Notes
from detalbert.settings.hparams import HParams, parse_data_config
from detalbert.squad.places import find_answer
from detalbert.squad.question_stream import REPEATED
from detalbert.squad.sources import Reading, open_source, read_examples
from detalbert.squad.windows import Example, build_windows
from tests.fakes.questions import read_squad
from tests.reading.files import json_lines, table


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Write rows as a table, or as JSON lines."""
    path.write_text(json_lines(rows) if path.suffix == ".jsonl" else table(rows))
    return path


def read(name: Any, split: str = "train", notes: Notes | None = None, **keys: Any) -> list[Example]:
    source = open_source(str(name), split, cache_dir=Path(), reading=Reading(**keys))
    return read_examples(source, notes=notes)


def test_a_folder_has_its_splits_by_the_files_names(tmp_path):
    for number, stem in enumerate(("train", "dev")):
        write(tmp_path / f"{stem}.jsonl", fraction_rows(number + 1))
    assert len(read(tmp_path, "train")) == 1
    assert len(read(tmp_path, "validation")) == 2


@given(st.text("ab .", min_size=1, max_size=30), st.data())
def test_whatever_is_there_is_found(context, data):
    start = data.draw(st.integers(0, len(context) - 1))
    end = data.draw(st.integers(start + 1, len(context)))
    answer = context[start:end].strip()
    if answer:
        place = find_answer(context, answer)
        assert place is not None
        assert context[place[0] : place[1]] == answer


def test_squad_without_positions_gives_the_same_windows(shared, albert, tmp_path):
    """But where a label's text stands twice: 32 of the 1,299 labels are at another place."""
    examples = read_squad(shared / "squad" / "dev.json")
    rows = []
    for example in examples:
        texts = [text for text, _ in example.answers]
        row = {"id": example.id, "question": example.question, "context": example.context}
        row |= {"title": example.title, "answer": texts}
        rows.append(row)

    notes = Notes()
    read_back = read(write(tmp_path / "dev.jsonl", rows), notes=notes)

    # What moved is a label, the first answer, or one of the others.
    labels_moved = []
    for number, (before, after) in enumerate(zip(examples, read_back, strict=True)):
        if before != after and before.answers[0] != after.answers[0]:
            labels_moved.append(number)
    assert len(labels_moved) == 32
    assert notes.counts[REPEATED] == 140

    same = np.setdiff1d(np.arange(len(examples)), labels_moved)[:400]
    expected = build_windows([examples[number] for number in same], albert).columns()
    columns = build_windows([read_back[number] for number in same], albert).columns()
    for name, column in expected.items():
        assert np.array_equal(columns[name], column), name


def fraction_rows(count: int) -> list[dict[str, str]]:
    """Return questions over at most sixty contexts, in turn."""
    rows = []
    for number in range(count):
        text = f"Text {number % 60}"
        row = {"question": f"Which {number}?", "context": f"{text} is here.", "answer": text}
        rows.append(row)
    return rows


def test_a_fraction_cuts_whole_contexts_whatever_their_order(tmp_path):
    rows = fraction_rows(240)
    held_out = []
    for name, ordered in (("a.csv", rows), ("b.csv", rows[::-1])):
        path = write(tmp_path / name, ordered)
        train = read(path, "train", fraction=0.25)
        validation = read(path, "validation", fraction=0.25)

        assert len(train) + len(validation) == 240
        contexts = {example.context for example in validation}
        assert len(contexts) == 15  # a quarter of sixty
        assert contexts.isdisjoint(example.context for example in train)
        held_out.append({example.question for example in validation})
    assert held_out[0] == held_out[1]


def test_a_fraction_needs_two_contexts_and_leaves_each_set_one(tmp_path):
    two = write(tmp_path / "few.csv", fraction_rows(2))
    assert len(read(two, "train", fraction=0.9)) == 1
    assert len(read(two, "validation", fraction=0.9)) == 1

    lone = write(tmp_path / "lone.csv", fraction_rows(1))
    with pytest.raises(UserError, match="lone.csv has one context, and each set needs one"):
        read(lone, fraction=0.25)


def test_a_fraction_is_in_the_fingerprint(tmp_path):
    path = str(write(tmp_path / "a.csv", fraction_rows(240)))
    fingerprints = set()
    for fraction in (None, 0.1, 0.2):
        source = open_source(path, "train", Path(), Reading(fraction=fraction))
        fingerprints.add(source.fingerprint)
    assert len(fingerprints) == 3


def load(tmp_path: Path, **keys: Any) -> SquadData:
    config = {"cache_dir": str(tmp_path / "cache"), "tokenizer": "embedded/albert-tiny", **keys}
    return SquadData.load(config, HParams(model_config={}, max_seq_length=192, doc_stride=64))


def long_rows() -> list[dict[str, str]]:
    """Return two questions that differ after their 64th token only, and answers of one context."""
    opening = "town " * 70
    context = "Zanto was built in Orvane. Zanto was loaded with salt."
    return [
        {"question": f"{opening}built where?", "context": context, "answer": "Orvane"},
        {"question": f"{opening}loaded with?", "context": context, "answer": "Zanto"},
    ]


def test_what_the_splits_say(tmp_path, caplog):
    caplog.set_level("WARNING")
    path = write(tmp_path / "long.csv", long_rows())

    loaded = load(tmp_path, train=str(path), validation=str(path))

    assert "2 of its 2 questions are in data.train" in caplog.text
    lines = loaded.summary().lines
    assert "1 answers stand more than once" in lines["train"]
    assert "2 questions are cut to 64 tokens" in lines["train"]
    assert "cut" not in lines["validation"]

    # Cut, the two questions are the same; in validation they are not cut.
    train = loaded.train.windows
    assert train.pack([0])["input_ids"].tolist() == train.pack([1])["input_ids"].tolist()
    validation = loaded.validation.windows
    first = validation.pack([0])["input_ids"].tolist()
    assert first != validation.pack([1])["input_ids"].tolist()


def test_splits_of_different_questions_say_nothing(tmp_path, caplog):
    caplog.set_level("WARNING")
    rows = long_rows()
    train = write(tmp_path / "long.csv", rows)
    validation = write(tmp_path / "other.csv", [{**rows[0], "question": "Why?"}])

    load(tmp_path, train=str(train), validation=str(validation))

    assert caplog.text == ""


KEYS: dict[str, dict[str, Any]] = {
    "set 'validation' (a file or data set) or": {"validation": None},
    "'b.csv' is set beside validation_fraction; leave": {"validation_fraction": 0.1},
    "1.5 must be greater than 0 and less": {"validation": None, "validation_fraction": 1.5},
    "columns.questoin: unknown key; did you mean 'question'?": {"columns": {"questoin": "Frage"}},
    "columns.question: 3; give the column's name as text": {"columns": {"question": 3}},
}


@pytest.mark.parametrize("problem", KEYS)
def test_a_mistake_in_the_keys_is_one_line(problem):
    config = {"train": "a.csv", "validation": "b.csv", **KEYS[problem]}
    with pytest.raises(UserError) as error:
        parse_data_config(config)
    assert problem in str(error.value)
    assert "\n" not in str(error.value)


def test_a_mistake_in_the_place_is_one_line(tmp_path):
    problems = {
        tmp_path / "no.xlsx": "no.xlsx: no such file",
        "nowhere.json": "nowhere.json: no such file; set data.train",
        "no_such_set": "data.train: 'no_such_set' is no file",
    }
    for name, problem in problems.items():
        with pytest.raises(UserError, match=problem):
            read(name)

    for ending in ("csv", "jsonl"):
        write(tmp_path / f"train.{ending}", fraction_rows(1))
    with pytest.raises(UserError, match=r"train.csv, train.jsonl: which is it\? Name one file"):
        read(tmp_path)
