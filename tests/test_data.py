"""The feature cache: whole or absent, keyed by all that can change it, shared by processes."""

import dataclasses
import json
import multiprocessing
import os
import random
import resource
import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import data
from detalbert.errors import UserError
from detalbert.integrity import seal
from detalbert.settings.hparams import DataConfig, HParams
from tests.conftest import ROOT, SOAK
from tests.fakes.damage import flip

HPARAMS = HParams(model="embedded/albert-tiny", max_seq_length=192, doc_stride=64)
FEW = {"max_train_examples": 50, "max_validation_examples": 20}
Load = Callable[..., data.Split]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return data.load_tokenizer(DataConfig("generated", "generated"), HPARAMS)


@pytest.fixture
def load(tmp_path, tokenizer) -> Load:
    """`load(**changes)`: the training split of so changed `data:`, cached in cache/."""

    def read(tokenizer: Any = tokenizer, hparams: HParams = HPARAMS, **changes: Any) -> data.Split:
        values = {"cache_dir": str(tmp_path / "cache"), **FEW, **changes}
        config = DataConfig("generated", "generated", **values)
        return data.load_split(config, "train", tokenizer, hparams)

    return read


def test_the_cache_gives_back_the_same_columns(tmp_path, load):
    fresh = load()
    written = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*.npy")}
    assert written
    again = load()
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*.npy")} == written
    for name, column in fresh.windows.columns().items():
        assert isinstance(column, np.memmap) or column.size == 0
        assert np.array_equal(column, again.windows.columns()[name])
    assert again.counts["questions"] == 50 == len(again.examples)
    assert again.counts["tokens"] == again.windows.lengths.sum()


def test_a_damaged_cache_is_built_anew_with_one_line(tmp_path, load, caplog):
    caplog.set_level("WARNING")
    fresh = load(max_train_examples=10)
    columns = {name: np.array(column) for name, column in fresh.windows.columns().items()}
    (folder,) = tmp_path.glob("cache/windows-train-*/")
    kinds = [flip, flip, lambda path, _: os.truncate(path, 9), lambda path, _: path.unlink()]
    dice, names = random.Random(0), [*columns, "meta"]
    for name in names * SOAK:
        (path,) = folder.glob(f"{name}.*")
        dice.choice(kinds)(path, dice)
        again = load(max_train_examples=10)
        for name, column in again.windows.columns().items():
            assert np.array_equal(column, columns[name])
        line = f"{folder}: {path.name} is not as it was written; the windows are built anew"
        assert (again.counts, caplog.messages) == (fresh.counts, [line])
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
        facts = json.loads((folder / "meta.json").read_text())
        del facts["key"]
        (folder / "meta.json").write_text(json.dumps(seal(facts)))
    assert load(max_train_examples=10).counts == fresh.counts
    line = f"{folder}: meta.json is not as it was written; the windows are built anew"
    assert caplog.messages == [line]


def test_anything_that_can_change_a_byte_is_in_the_key(tmp_path, tokenizer, load):
    tokenizer.save_pretrained(tmp_path)
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps({**content, "normalizer": None}))
    other = data.load_tokenizer(DataConfig("g", "g", tokenizer=str(tmp_path)), HPARAMS)
    kinds: list[dict[str, Any]] = [{}, {"tokenizer": other}, {"skip_invalid": True}]
    kinds += [{"max_train_examples": 49}]
    for of_model in ({"max_seq_length": 160}, {"doc_stride": 32}, {"max_query_length": 10}):
        kinds += [{"hparams": dataclasses.replace(HPARAMS, **of_model)}]
    for number, changes in enumerate(kinds, 1):
        load(**changes)
        assert len(list(tmp_path.glob("cache/windows-train-*/meta.json"))) == number


def test_of_many_processes_one_featurises(load, monkeypatch, fork):
    context = multiprocessing.get_context("fork")
    barrier, built, build = context.Barrier(3), context.SimpleQueue(), data.build_windows
    monkeypatch.setattr(data, "build_windows", lambda *a, **k: built.put(1) or build(*a, **k))
    ranks = [context.Process(target=lambda: (barrier.wait(), load())) for _ in range(3)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(60)
    assert [rank.exitcode for rank in ranks] == [0, 0, 0]
    assert built.get() == 1 and built.empty()


def test_a_cache_that_cannot_be_written_and_no_tokenizer(tmp_path, load):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 14, before[1]))  # the disk is full
    try:
        with pytest.raises(UserError, match="cannot write the feature cache .*data.cache_dir"):
            load(max_train_examples=2000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [p for p in (tmp_path / "cache").rglob("*") if p.suffix != ".lock"] == []
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write the feature cache"):
        load(cache_dir=str(tmp_path / "file" / "cache"))
    with pytest.raises(UserError, match="data.tokenizer: missing"):
        data.load_tokenizer(DataConfig("g", "g"), HParams(model_config={}))
    with pytest.raises(UserError, match="data.tokenizer: .* does not load as a tokenizer"):
        data.load_tokenizer(DataConfig("g", "g", tokenizer=str(ROOT / "configs")), HPARAMS)
