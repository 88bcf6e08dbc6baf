"""The feature cache: whole or absent, keyed by all that can change it, shared by processes."""

import dataclasses
import json
import multiprocessing
import os
import random
import resource
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import data
from data import load_split, load_tokenizer
from detalbert.errors import UserError
from detalbert.settings.hparams import DataConfig, HParams
from tests.conftest import ROOT, SOAK
from tests.fakes.damage import flip

HPARAMS = HParams(model="embedded/albert-tiny", max_seq_length=192, doc_stride=64)


def config(cache_dir: Path, **changes: Any) -> DataConfig:
    values = {"max_train_examples": 50, "max_validation_examples": 20, **changes}
    return DataConfig("generated", "generated", cache_dir=str(cache_dir), **values)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return load_tokenizer(DataConfig("generated", "generated"), HPARAMS)


def test_the_cache_gives_back_the_same_columns(tmp_path: Path, tokenizer: Any) -> None:
    fresh = load_split(config(tmp_path), "train", tokenizer, HPARAMS)
    written = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*.npy")}
    assert written
    again = load_split(config(tmp_path), "train", tokenizer, HPARAMS)
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*.npy")} == written
    for name, column in fresh.windows.columns().items():
        assert isinstance(column, np.memmap) or column.size == 0
        assert np.array_equal(column, again.windows.columns()[name])
    assert again.counts["questions"] == 50 == len(again.examples)
    assert again.counts["tokens"] == again.windows.lengths.sum()


def test_a_damaged_cache_is_built_anew_with_one_line(
    tmp_path: Path, tokenizer: Any, caplog: Any
) -> None:
    fresh = load_split(config(tmp_path), "train", tokenizer, HPARAMS)
    columns = {name: np.array(column) for name, column in fresh.windows.columns().items()}
    (folder,) = tmp_path.glob("windows-train-*/")
    dice, names = random.Random(0), [*columns, "meta"]
    for name in names * SOAK:
        (path,) = folder.glob(f"{name}.*")
        damage = dice.choice([flip, flip, lambda path, _: os.truncate(path, 9), _unlink])
        damage(path, dice)
        again = load_split(config(tmp_path), "train", tokenizer, HPARAMS)
        for name, column in again.windows.columns().items():
            assert np.array_equal(column, columns[name])
        line = f"{folder}: {path.name} is not as it was written; the windows are built anew"
        assert (again.counts, caplog.messages) == (fresh.counts, [line])
        caplog.clear()


def _unlink(path: Path, _: Any) -> None:
    path.unlink()


@pytest.mark.parametrize(
    "change",
    [
        {"max_seq_length": 160},
        {"doc_stride": 32},
        {"max_query_length": 10},
        {"max_train_examples": 49},
        {"skip_invalid": True},
    ],
)
def test_anything_that_can_change_a_byte_is_in_the_key(
    tmp_path: Path, tokenizer: Any, change: dict
) -> None:
    load_split(config(tmp_path), "train", tokenizer, HPARAMS)
    of_data = {k: v for k, v in change.items() if k in ("max_train_examples", "skip_invalid")}
    of_model = {k: v for k, v in change.items() if k not in of_data}
    changed = dataclasses.replace(HPARAMS, **of_model)
    load_split(config(tmp_path, **of_data), "train", tokenizer, changed)
    assert len(list(tmp_path.glob("windows-train-*/meta.json"))) == 2


def test_another_tokenizer_has_another_key(tmp_path: Path, tokenizer: Any) -> None:
    load_split(config(tmp_path), "train", tokenizer, HPARAMS)
    folder = tmp_path / "other"
    tokenizer.save_pretrained(folder)
    content = json.loads((folder / "tokenizer.json").read_text())
    content["normalizer"] = None
    (folder / "tokenizer.json").write_text(json.dumps(content))
    other = load_tokenizer(DataConfig("g", "g", tokenizer=str(folder)), HPARAMS)
    load_split(config(tmp_path), "train", other, HPARAMS)
    assert len(list(tmp_path.glob("windows-train-*/meta.json"))) == 2


def _load(arguments: tuple) -> str:
    cache_dir, barrier = arguments
    tokenizer = load_tokenizer(DataConfig("generated", "generated"), HPARAMS)
    built = []
    build = data.build_windows
    data.build_windows = lambda *a: built.append(1) or build(*a)
    barrier.wait()
    load_split(config(cache_dir), "train", tokenizer, HPARAMS)
    return f"{len(built)}"


def test_of_many_processes_one_featurises(tmp_path: Path, fork: None) -> None:
    context = multiprocessing.get_context("fork")
    with context.Manager() as manager, context.Pool(3) as pool:
        barrier = manager.Barrier(3)
        built = pool.map(_load, [(tmp_path, barrier)] * 3, chunksize=1)
    assert sorted(built) == ["0", "0", "1"]


def _mount_small_disk(path: Path, size: str) -> bool:
    mount = shutil.which("mount")
    if os.geteuid() != 0 or mount is None:
        return False
    command = [mount, "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)]
    return subprocess.run(command, capture_output=True).returncode == 0


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, tokenizer: Any, fork: None) -> None:
    """On a real full file system where mounting one is allowed; else at the file-size limit."""
    mounted = _mount_small_disk(tmp_path, "64k")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    if not mounted:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(UserError, match="cannot write the feature cache: .*data.cache_dir"):
            load_split(config(tmp_path, max_train_examples=2000), "train", tokenizer, HPARAMS)
        left = [p for p in tmp_path.rglob("*") if p.suffix != ".lock"]
        assert left == []
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        if mounted:
            subprocess.run([shutil.which("umount"), str(tmp_path)], check=True)


def test_an_unwritable_cache(tmp_path: Path, tokenizer: Any) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(UserError, match="cannot write the feature cache"):
        load_split(config(blocked / "cache"), "train", tokenizer, HPARAMS)


def test_a_tokenizer_that_is_none() -> None:
    with pytest.raises(UserError, match="data.tokenizer: missing"):
        load_tokenizer(DataConfig("g", "g"), HParams(model_config={}))
    with pytest.raises(UserError, match="data.tokenizer: .* does not load as a tokenizer"):
        load_tokenizer(DataConfig("g", "g", tokenizer=str(ROOT / "configs")), HPARAMS)
