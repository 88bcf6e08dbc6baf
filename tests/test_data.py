"""The feature cache: whole or absent, keyed by all that can change it, shared by processes."""

import dataclasses
import json

import numpy as np
import pytest

import data
from detalbert.errors import UserError
from detalbert.settings.hparams import DataConfig, HParams
from tests.conftest import ROOT

HPARAMS = HParams(model="embedded/albert-tiny", max_seq_length=192, doc_stride=64)


@pytest.fixture(scope="module")
def tokenizer():
    return data.load_tokenizer(DataConfig("generated", "generated"), HPARAMS)


@pytest.fixture
def load(tmp_path, tokenizer):
    """`load(**changes)`: the training split of so changed `data:`, cached in cache/."""

    def read(tokenizer=tokenizer, hparams=HPARAMS, **changes):
        config = DataConfig(
            train="generated",
            validation="generated",
            cache_dir=str(tmp_path / "cache"),
            max_train_examples=50,
            max_validation_examples=20,
        )
        config = dataclasses.replace(config, **changes)
        return data.load_split(config, data.open_split(config, "train"), tokenizer, hparams)

    return read


def copy_columns(split):
    """The columns of the windows, which are mapped files."""
    return {name: np.array(column) for name, column in split.windows.columns().items()}


def assert_columns(split, expected):
    columns = split.windows.columns()
    assert columns.keys() == expected.keys()
    for name, column in columns.items():
        assert np.array_equal(column, expected[name])


def written_at(folder):
    """When each column was written."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*.npy")}


def test_questions_that_were_left_out_are_no_examples(tmp_path, load):
    context = "The red ship was built in Arvik."
    rows = [
        {"id": name, "question": "Where?", "context": context, "answer": answer}
        for name, answer in (("a", "Arvik"), ("b", "Ogra"), ("c", "red"))
    ]
    path = tmp_path / "mine.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    split = load(train=str(path), skip_invalid=True)
    assert [example.id for example in split.examples] == ["a", "c"]
    assert split.notes["left out: answer not found"] == 1


@pytest.mark.parametrize("split", ["train", "validation"])
def test_a_missing_file_is_told_before_a_model_is_loaded(split, monkeypatch):
    monkeypatch.setattr(data, "load_tokenizer", lambda *_: pytest.fail("a model is loaded"))
    names = {"train": "generated", "validation": "generated", split: "mine.csv"}
    with pytest.raises(UserError, match=f"^data.{split}: mine.csv: no such file"):
        data.SquadData.load(names, HPARAMS)


@pytest.mark.parametrize(
    ("text", "share"),
    [("The red ship was built in Arvik.", None), ("赤い船は港で作られた。", "92 %")],
)
def test_texts_that_a_tokenizer_does_not_know_are_told(text, share, tmp_path, caplog):
    row = {"question": "Where?", "context": text, "answer": text.split()[-1].rstrip(".")}
    (tmp_path / "mine.jsonl").write_text(json.dumps(row) + "\n")
    config = {"train": str(tmp_path / "mine.jsonl"), "validation": "generated"}
    config |= {"max_validation_examples": 5, "cache_dir": str(tmp_path / "cache")}
    data.SquadData.load(config, HPARAMS)
    warnings = [line for line in caplog.messages if "does not know" in line]
    assert len(warnings) == (share is not None)
    for line in warnings:
        assert line.startswith(f"data.train: {share} of the tokens of its texts are <unk>, which")


def test_the_cache_gives_back_the_same_columns(tmp_path, load):
    fresh = load()
    written = written_at(tmp_path)
    assert written

    cached = load()

    assert written_at(tmp_path) == written
    assert_columns(cached, copy_columns(fresh))
    for column in fresh.windows.columns().values():
        assert isinstance(column, np.memmap) or column.size == 0
    assert cached.counts["questions"] == len(cached.examples) == 50
    assert cached.counts["tokens"] == cached.windows.lengths.sum()


def test_anything_that_can_change_a_byte_is_in_the_key(tmp_path, tokenizer, load):
    tokenizer.save_pretrained(tmp_path)
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps({**content, "normalizer": None}))
    other = data.load_tokenizer(DataConfig("g", "g", tokenizer=str(tmp_path)), HPARAMS)
    changes_of_a_byte = [
        {},
        {"tokenizer": other},
        {"skip_invalid": True},
        {"max_train_examples": 49},
        {"hparams": dataclasses.replace(HPARAMS, max_seq_length=160)},
        {"hparams": dataclasses.replace(HPARAMS, doc_stride=32)},
        {"hparams": dataclasses.replace(HPARAMS, max_query_length=10)},
    ]
    for number, changes in enumerate(changes_of_a_byte, start=1):
        load(**changes)
        assert len(list(tmp_path.glob("cache/windows-train-*/meta.json"))) == number


def test_no_tokenizer_is_one_line():
    with pytest.raises(UserError, match="data.tokenizer: missing"):
        data.load_tokenizer(DataConfig("g", "g"), HParams(model_config={}))
    named = str(ROOT / "configs")
    with pytest.raises(UserError, match="data.tokenizer: .* does not load as a tokenizer"):
        data.load_tokenizer(DataConfig("g", "g", tokenizer=named), HPARAMS)
    with pytest.raises(UserError, match="hyperparameters.model: .* does not load as a tokenizer"):
        data.load_tokenizer(DataConfig("g", "g"), HParams(model=named))
