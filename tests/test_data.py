"""The feature cache: whole or absent, keyed by all that can change it, shared by processes."""

import dataclasses
import json
import multiprocessing
import os
import random
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import data
from detalbert.errors import UserError
from detalbert.settings.hparams import DataConfig, HParams
from detalbert.sums import seal
from tests.conftest import ROOT, SOAK
from tests.fakes.damage import flip

HPARAMS = HParams(model="embedded/albert-tiny", max_seq_length=192, doc_stride=64)
Load = Callable[..., data.Split]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return data.load_tokenizer(DataConfig("generated", "generated"), HPARAMS)


@pytest.fixture
def load(tmp_path, tokenizer) -> Load:
    """`load(**changes)`: the training split of so changed `data:`, cached in cache/."""

    def read(tokenizer: Any = tokenizer, hparams: HParams = HPARAMS, **changes: Any) -> data.Split:
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


def copy_columns(split: data.Split) -> dict[str, np.ndarray]:
    """The columns of the windows, which are mapped files."""
    return {name: np.array(column) for name, column in split.windows.columns().items()}


def assert_columns(split: data.Split, expected: dict[str, np.ndarray]) -> None:
    columns = split.windows.columns()
    assert columns.keys() == expected.keys()
    for name, column in columns.items():
        assert np.array_equal(column, expected[name])


def written_at(folder: Path) -> dict[Path, int]:
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
    assert sum(split.faults.values()) == 1


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


def truncate(path: Path, _: random.Random) -> None:
    os.truncate(path, 9)


def remove(path: Path, _: random.Random) -> None:
    path.unlink()


def test_a_damaged_cache_is_built_anew_with_one_line(tmp_path, load, caplog):
    caplog.set_level("WARNING")
    fresh = load(max_train_examples=10)
    columns = copy_columns(fresh)
    (folder,) = tmp_path.glob("cache/windows-train-*/")
    dice = random.Random(0)
    for name in [*columns, "meta"] * SOAK:
        (path,) = folder.glob(f"{name}.*")
        damage = dice.choice([flip, flip, truncate, remove])
        damage(path, dice)

        rebuilt = load(max_train_examples=10)

        assert_columns(rebuilt, columns)
        assert rebuilt.counts == fresh.counts
        (line,) = caplog.messages
        assert line.startswith(f"{folder}: {path.name} is not as it was written; making ")
        caplog.clear()


@pytest.mark.parametrize("whose", ["another's", "an older version's"])
def test_what_was_made_for_something_else_is_built_anew(whose, tmp_path, load, caplog):
    caplog.set_level("WARNING")
    fresh = load(max_train_examples=10)
    (folder,) = tmp_path.glob("cache/windows-train-*/")
    if whose == "another's":
        shutil.rmtree(folder)
        load(max_train_examples=9)
        (other,) = tmp_path.glob("cache/windows-train-*/")
        other.rename(folder)
    else:
        sums = json.loads((folder / "sums.json").read_text())
        (folder / "sums.json").write_text(json.dumps(seal({**sums, "key": "of 1.0"})))
    assert load(max_train_examples=10).counts == fresh.counts
    (line,) = caplog.messages
    assert line.startswith(f"{folder}: sums.json is not as it was written; making ")


def test_anything_that_can_change_a_byte_is_in_the_key(tmp_path, tokenizer, load):
    tokenizer.save_pretrained(tmp_path)
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps({**content, "normalizer": None}))
    other = data.load_tokenizer(DataConfig("g", "g", tokenizer=str(tmp_path)), HPARAMS)
    changes_of_a_byte: list[dict[str, Any]] = [
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


def test_of_many_processes_one_featurises(load, monkeypatch, fork):
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(3)
    builds = context.SimpleQueue()
    build_windows = data.build_windows

    def note_and_build(*args: Any, **kwargs: Any) -> Any:
        builds.put(1)
        return build_windows(*args, **kwargs)

    def load_together() -> None:
        barrier.wait()
        load()

    monkeypatch.setattr(data, "build_windows", note_and_build)
    ranks = [context.Process(target=load_together) for _ in range(3)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(60)
    assert [rank.exitcode for rank in ranks] == [0, 0, 0]
    assert builds.get() == 1
    assert builds.empty()


def test_a_cache_that_cannot_be_written_is_one_line(tmp_path, load):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 14, before[1]))  # the disk is full
    try:
        with pytest.raises(
            UserError, match="cannot write the questions of generated .*data.cache_dir"
        ):
            load(max_train_examples=2000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [path for path in (tmp_path / "cache").rglob("*") if path.suffix != ".lock"] == []

    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write the questions"):
        load(cache_dir=str(tmp_path / "file" / "cache"))


def test_no_tokenizer_is_one_line():
    with pytest.raises(UserError, match="data.tokenizer: missing"):
        data.load_tokenizer(DataConfig("g", "g"), HParams(model_config={}))
    named = str(ROOT / "configs")
    with pytest.raises(UserError, match="data.tokenizer: .* does not load as a tokenizer"):
        data.load_tokenizer(DataConfig("g", "g", tokenizer=named), HPARAMS)
    with pytest.raises(UserError, match="hyperparameters.model: .* does not load as a tokenizer"):
        data.load_tokenizer(DataConfig("g", "g"), HParams(model=named))
