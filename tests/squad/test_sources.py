"""Sources of questions: folders, fractions, official files, the generated world."""

import hashlib
import json

import pytest

from detalbert.errors import UserError
from detalbert.squad import sources
from detalbert.squad.questions import read_examples
from detalbert.squad.sources import OFFICIAL_SHA256, Reading, open_source
from tests.fakes.http import AnswerServer
from tests.fakes.questions import load_world, read_questions
from tests.squad.test_questions import ASKED, LABELLED, read, squad, write


def test_the_generated_world_has_our_columns():
    reading = Reading(columns={"question": "Frage"}, sheet="Fragen")
    assert len(list(read_questions("generated", reading))) == 600


def make(folder, *names):
    for number, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write(folder / name, {**ASKED, "id": f"{name}{number}", "answer": "tar"})


FOLDERS = [
    (("train.csv", "valid.jsonl", "README.md"), {"train": 1, "validation": 1}),
    (("train/part-0.csv", "train/part-1.csv", "dev/a.csv"), {"train": 2, "validation": 1}),
    (("part-00000.jsonl", "part-00001.jsonl"), {"train": 2, "validation": 2}),
    (("train.csv",), {"train": 1, "validation": "which of its files is validation? (train.csv)"}),
    (
        ("train.csv", "train.jsonl"),
        {"train": "which of its files is train? (train.csv, train.jsonl)"},
    ),
    (("a.csv", "notes.csv"), {"train": "which of its files is train? (a.csv, notes.csv)"}),
    (("a.txt",), {"train": "no file of .json"}),
]


@pytest.mark.parametrize(("names", "expected"), FOLDERS, ids=str)
def test_a_folder_has_its_splits_by_names(names, expected, tmp_path):
    make(tmp_path, *names)
    for split, count in expected.items():
        if isinstance(count, int):
            assert len(read(tmp_path, split)) == count
            continue
        with pytest.raises(UserError) as error:
            read(tmp_path, split)
        assert str(error.value).startswith(f"data.{split}: {tmp_path}")
        assert count in str(error.value)


@pytest.mark.parametrize(("fraction", "held_out"), [(0.1, 1), (0.4, 2), (0.99, 3)])
def test_a_fraction_of_a_hub_sets_contexts_is_held_out(fraction, held_out, monkeypatch):
    """Of four contexts, with both of their questions, of the training questions; at least one."""
    rows = []
    for number in range(8):
        context = f"{ASKED['context']} {number // 2}"
        rows.append({**ASKED, "context": context, "id": number, "answer": "tar"})
    splits = []

    def load_rows(name, split, key):
        splits.append(split)
        return rows

    sources._hub_rows.cache_clear()
    monkeypatch.setattr("detalbert.hub.load_rows", load_rows)
    ids = {}
    for split, contexts in {"validation": held_out, "train": 4 - held_out}.items():
        examples = read("someone/questions", split, fraction=fraction)
        assert len({example.context for example in examples}) == contexts
        ids[split] = [example.id for example in examples]
    assert sorted(ids["validation"] + ids["train"]) == list("01234567")
    assert set(splits) == {"train"}


@pytest.mark.parametrize("name", ["no.xlsx", "./no", "no/*.csv", ""])
def test_a_path_of_nothing_is_no_name_of_the_hub(name):
    with pytest.raises(UserError, match=f"^data.train: {name.split('*')[0]}"):
        read(name)


def test_a_fraction_cuts_whole_contexts_whatever_their_order(tmp_path):
    rows = [
        {"question": f"{number}?", "context": f"Text {number % 60} is here.", "answer": "Text"}
        for number in range(240)
    ]
    held_out = []
    fingerprints = set()
    for name, ordered in (("a.csv", rows), ("b.csv", rows[::-1])):
        path = write(tmp_path / name, *ordered)
        train = read(path, "train", fraction=0.25)
        validation = read(path, "validation", fraction=0.25)
        assert len(train) + len(validation) == 240
        contexts = {example.context for example in validation}
        assert len(contexts) == 15  # a quarter of sixty
        assert contexts.isdisjoint(example.context for example in train)
        assert [int(example.id) for example in train] == sorted(
            int(example.id) for example in train
        )
        held_out.append({example.question for example in validation})
        for keys in ({}, {"fraction": 0.25}, {"no_answer": ("x",)}):
            fingerprints.add(open_source(str(path), "train", tmp_path, Reading(**keys)).fingerprint)
    assert held_out[0] == held_out[1]
    assert len(fingerprints) == 6

    few = write(tmp_path / "few.csv", *rows[:2])
    assert len(read(few, "train", fraction=0.9)) == len(read(few, "validation", fraction=0.9)) == 1
    with pytest.raises(UserError, match=r"one.csv has one context, and each set needs one"):
        read(write(tmp_path / "one.csv", rows[0]), fraction=0.25)


def test_an_official_file_is_downloaded_once(tmp_path, monkeypatch):
    body = json.dumps({"data": [squad(LABELLED)]}).encode()
    served = {"/dev-v2.0.json": body}

    def respond(request):
        return (200 if request.path in served else 404), served.get(request.path)

    monkeypatch.setitem(OFFICIAL_SHA256, "dev-v2.0.json", hashlib.sha256(body).hexdigest())
    monkeypatch.chdir(tmp_path)
    with AnswerServer(respond) as site:
        monkeypatch.setattr(sources, "OFFICIAL_URL", site.url)
        first = open_source("dev-v2.0.json", "validation", tmp_path / "new" / "cache")
        served["/dev-v2.0.json"] = b"x" * len(body)
        again = open_source("dev-v2.0.json", "validation", tmp_path / "new" / "cache")
        assert len(list(read_examples(again))) == 1
        assert first == again
        for name in ("dev-v2.0.json", "train-v2.0.json"):
            with pytest.raises(UserError, match=f"^{name}: not here, and downloading .* failed"):
                open_source(name, "validation", tmp_path / "other")
        served["/dev-v2.0.json"] = body
        open_source("dev-v2.0.json", "validation", tmp_path / "other")


# Published numbers and cached windows belong to these bytes.
WORLD_SHA256 = {
    "train": "26a3caaae489164c765a82d0bb241de1c8405bd33464399919050f42f9946512",
    "validation": "7a7a19a8af513f516a36f9e27a07a0bea924e587faa392a5a011f9874faa1e36",
}


@pytest.mark.parametrize("split", WORLD_SHA256)
def test_the_shipped_questions_never_change(split):
    world = json.dumps(load_world(split))
    assert hashlib.sha256(world.encode()).hexdigest() == WORLD_SHA256[split]
