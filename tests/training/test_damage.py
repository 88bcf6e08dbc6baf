"""Damages of a run, a cache, an export and a bucket: the same numbers come, or one line."""

import contextlib
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import data
from detalbert.errors import UserError
from detalbert.inference.export import export
from detalbert.inference.model import load_model
from detalbert.inference.reply import ask
from detalbert.settings.hparams import DataConfig, HParams
from detalbert.training.controller import Controller
from tests.fakes.damage import spoil
from tests.fakes.runs import newest, only_error, run
from tests.same_bits import differences

# Numbers of damages, of each kind: 4, and 75 in the soak.
SOME: list[Any] = [range(4)]
SOME += [pytest.param(range(at, at + 15), marks=pytest.mark.soak) for at in range(4, 79, 15)]


def files_of(folder: Path) -> list[Path]:
    """The files that count, in a fixed order: no locks, no logs."""
    found = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    hidden = "/.", "/code/", "tensorboard", "metrics.json"
    return [path for path in found if not any(part in str(path) for part in hidden)]


def damages(folder: Path, numbers: range) -> Iterator[str]:
    """Yield for each number what is damaged in `folder`, which is whole again for each."""
    whole = folder.with_name("whole")
    folder.rename(whole)
    for number in numbers:
        shutil.copytree(whole, folder)
        dice = random.Random(number)
        files = files_of(folder)
        yield spoil(dice.choice(files), dice.choice(files), dice)
        shutil.rmtree(folder)


def judge(status: int, capsys: Any, damage: str, one: Path, other: Path) -> None:
    """A run has ended in the same bits, or in one line with status 2."""
    shown = capsys.readouterr().err
    assert "Traceback" not in shown, f"{damage}\n{shown}"
    if status:
        assert status == 2 and only_error(shown).startswith("train.py: error: "), damage
    else:
        assert differences(one, other) == [], f"{damage}\n{shown}"


@pytest.mark.parametrize("numbers", SOME)
def test_a_run_is_the_same_or_one_line(numbers: range, finished: Path, tmp_path: Path, capsys: Any):
    shutil.copytree(finished / "out", tmp_path / "out")
    shutil.rmtree(newest(tmp_path / "out"))
    for damage in damages(tmp_path / "out", numbers):
        status = run(finished / "tiny.yaml", tmp_path / "out")
        judge(status, capsys, damage, finished / "out", tmp_path / "out")


@pytest.mark.parametrize("numbers", SOME)
def test_windows_are_the_same(numbers: range, tmp_path: Path, cache_dir: Path) -> None:
    """Nothing is refused: they are built anew."""
    hparams = HParams(model="embedded/albert-tiny", max_seq_length=192, doc_stride=64)
    cache = str(tmp_path / "cache")
    configs = [
        DataConfig("generated", "generated", cache_dir=cache, max_train_examples=questions)
        for questions in (20, 30)
    ]
    tokenizer = data.load_tokenizer(configs[0], hparams)
    load = lambda config: data.load_split(config, "train", tokenizer, hparams)  # noqa: E731
    before = [load(config) for config in configs]
    wanted = [{k: np.array(v) for k, v in x.windows.columns().items()} for x in before]
    for damage in damages(tmp_path / "cache", numbers):
        for config, columns in zip(configs, wanted, strict=True):
            for name, column in load(config).windows.columns().items():
                assert np.array_equal(column, columns[name]), damage


@pytest.mark.parametrize("numbers", SOME)
def test_an_export_answers_alike_or_not_at_all(
    numbers: range, finished: Path, tmp_path: Path
) -> None:
    model = load_model(str(finished / "out"))
    export(model, tmp_path / "exported")
    pair = "What was the Zanto loaded with?", "The Zanto was loaded with pottery."
    wanted, answered = ask(model, *pair, 0.0), 0
    for damage in damages(tmp_path / "exported", numbers):
        with contextlib.suppress(UserError):
            assert ask(load_model(str(tmp_path / "exported")), *pair, 0.0) == wanted, damage
            answered += 1
    assert answered < len(numbers) / 2


@pytest.mark.parametrize("numbers", SOME)
def test_a_bucket_gives_the_same_or_one_line(
    numbers: range, finished: Path, s3: Any, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    """Its local copy is gone, or is still there."""
    monkeypatch.setattr(Controller, "copy_code", staticmethod(lambda path: None))
    client, kept = s3[0], "checkpoint_storage.save_trial_latest=3"  # as `finished` has
    monkeypatch.chdir(tmp_path)
    bucket, local = tmp_path / "bucket", Path("runs/s3/bucket/1")
    assert run(finished / "tiny.yaml", bucket) == 0  # without the code's 150 files
    shutil.rmtree(newest(bucket))
    for number, damage in enumerate(damages(bucket, numbers)):
        for entry in client.list_objects_v2(Bucket="bucket").get("Contents", []):
            client.delete_object(Bucket="bucket", Key=entry["Key"])
        for path in [path for path in bucket.rglob("*") if path.is_file()]:
            key = f"1/{path.relative_to(bucket).as_posix()}"
            client.put_object(Bucket="bucket", Key=key, Body=path.read_bytes())
        shutil.rmtree("runs", ignore_errors=True)
        if number % 2:
            shutil.copytree(bucket.with_name("whole"), local)
        status = run(finished / "tiny.yaml", "s3://bucket/1", "--set", kept)
        judge(status, capsys, damage, finished / "out", local)
