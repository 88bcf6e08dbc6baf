"""A language model through the real entry point: restarts, layouts, checkpoints beside training."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from torch.distributed import checkpoint as dcp

from detalbert.training.controller import ShardedController
from detalbert.training.parts import TensorSaver
from detalbert.training.timeline import list_checkpoints
from lm.trial import RankTotals, Scores
from tests.conftest import TINY_LM, configured, settings
from tests.fakes.damage import rewrite
from tests.fakes.runs import metrics, newest, refusal, run, train_into, wait_for
from tests.same_bits import differences, of_checkpoint


def test_a_run_learns_and_says_how_well(plain, tmp_path, capsys):
    longer = settings(max_steps=60, validation_period=30, checkpoint_period=60, samples=2)
    assert run(plain / "config.yaml", tmp_path / "out", *longer) == 0
    shown = capsys.readouterr().err
    assert "bits_per_byte" in shown and "windows of 32" in shown and "llama" in shown
    assert "layout        replicate 1 x shard 1 x tensor 1" in shown and "tokens/s" in shown
    samples = [line for line in shown.splitlines() if line.startswith('INFO: sample: "')]
    assert len(samples) == 4 and len({line.split('" -> "')[0] for line in samples}) == 2
    best, first = metrics(tmp_path / "out")["best"], 5.77  # ln 320
    assert best["loss"] < 0.7 * first and best["perplexity"] < 0.2 * 320
    assert best["bits_per_byte"] < best["baseline_bits_per_byte"]
    assert best["accuracy"] > 10
    sums = np.array([[6.0, 2.0, 2.0], [2.0, 0.0, 2.0], [0.0, 0.0, 0.0]])
    scores = Scores(["a", "b", "none"], np.ones((3, 320)), counts=False)
    sizes = np.array([2.0, 3.0, 0.0]), np.array([1.0, 5.0, 0.0])  # bytes, by rank and source
    found = scores.cross_slot_reduce([RankTotals(sums, np.zeros(320), size) for size in sizes])
    assert found["loss"] == 2 and found["bits_per_byte"] == pytest.approx(8 / math.log(2) / 11)
    assert (found["loss_a"], found["loss_b"]) == (3, 1) and "loss_none" not in found
    assert found["bits_per_byte_b"] == pytest.approx(2 / math.log(2) / 8)
    folder = newest(tmp_path / "out")
    assert json.loads((folder / "pretrained" / "config.json").read_text())["model_type"] == "llama"


@pytest.fixture(scope="module")
def plain(once, cache_dir) -> Path:
    keep = {"checkpoint_storage": {"save_trial_latest": 9}}
    values = configured(TINY_LM, cache_dir, validation_period=100) | keep
    return once("plain", lambda folder: train_into(folder, values))


@pytest.fixture(scope="module")
def two(once, cache_dir, train) -> Path:
    values = configured(TINY_LM, cache_dir, layout={"shard": 2})
    # Dropout's masks belong to a data rank: without any, other layouts compute the same.
    values["hyperparameters"]["model_config"]["attention_dropout"] = 0.0
    values["checkpoint_storage"] = {"save_trial_latest": 9}

    def fill(folder: Path) -> None:
        (folder / "lm.yaml").write_text(yaml.safe_dump(values))
        files = ["--config", folder / "lm.yaml", "--output-dir", folder / "out"]
        done = train(*files, *settings(profile_steps=4), processes=2)
        assert done.returncode == 0, done.stderr
        (folder / "shown").write_text(done.stderr)

    return once("two", fill)


def back_to(run_folder: Path, steps: int, copy: Path) -> Path:
    shutil.copytree(run_folder, copy)
    for at, folder in list_checkpoints(copy / "checkpoints"):
        if at > steps:
            shutil.rmtree(folder)
    return copy


def test_each_process_writes_its_part_and_one_reads_both(two, tmp_path):
    """Two processes -> one: the same losses."""
    shown = (two / "shown").read_text()
    assert shown.count("profile of 4 steps:\n") == 1 and "all_gather" in shown  # of rank 0 alone
    assert len(list((two / "out" / "tensorboard").glob("*.pt.trace.json"))) == 1
    folder = newest(two / "out")
    sizes = [path.stat().st_size for path in sorted(folder.glob("*.distcp"))]
    assert len(sizes) == 2 and max(sizes) < 1.3 * min(sizes)
    alone = back_to(two / "out", 4, tmp_path / "one")
    values = settings(layout="auto", checkpoint_period=100)
    assert run(two / "lm.yaml", alone, *values) == 0
    losses = [metrics(output)["last"]["loss"] for output in (alone, two / "out")]
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)


def test_two_processes_pass_over_a_damaged_part_and_go_on_as_the_same_run(two, tmp_path, train):
    again = back_to(two / "out", 8, tmp_path / "again")
    part = sorted(newest(again).glob("*.distcp"))[1]
    part.write_bytes(part.read_bytes()[:-7])
    done = train("--config", two / "lm.yaml", "--output-dir", again, processes=2)
    assert done.returncode == 0 and "resumed at step 6 of 12" in done.stderr, done.stderr
    assert "__1_0.distcp is not as it was written" in done.stderr
    assert differences(two / "out", again) == []


def test_numbers_of_another_model_are_refused(two, tmp_path, capsys):
    copy = back_to(two / "out", 4, tmp_path / "copy")
    for numbers in ('{"lm_head.weight": {"step": 4}}', "[]"):
        (newest(copy) / "numbers.json").write_text(numbers)
        rewrite(newest(copy))
        said = refusal(capsys, two / "lm.yaml", copy, *settings(layout="auto"))
        assert "numbers.json: does not fit: " in said


def test_what_is_stored_is_the_state_at_the_call(plain, tmp_path, monkeypatch):
    """Training goes on for three steps before it is written, unless it has ended."""
    trained, train, save = [0], ShardedController._train_batch, TensorSaver.save

    def train_and_count(*args: Any, **kwargs: Any) -> Any:
        found = train(*args, **kwargs)
        trained[0] += 1
        return found

    def save_slowly(*args: Any) -> Any:
        write, later = save(*args), min(trained[0] + 3, 12)
        return lambda: (wait_for(lambda: trained[0] >= later), write())

    monkeypatch.setattr(ShardedController, "_train_batch", train_and_count)
    monkeypatch.setattr(TensorSaver, "save", save_slowly)
    assert run(plain / "config.yaml", tmp_path / "out") == 0
    kept = [list_checkpoints(folder / "out" / "checkpoints") for folder in (plain, tmp_path)]
    assert [steps for steps, _ in kept[0]] == [steps for steps, _ in kept[1]] == [4, 8, 12]
    for (_, one), (_, other) in zip(*kept, strict=True):
        assert of_checkpoint(one) == of_checkpoint(other)
    assert of_checkpoint(kept[0][0][1]) != of_checkpoint(kept[0][1][1])


def test_a_failed_write_ends_the_run_at_the_next_step(plain, tmp_path, capsys, monkeypatch):
    endless = settings(max_steps=4000, validation_period=4000, reporting_period=4000)
    write, calls = dcp.FileSystemWriter.write_data, []

    def full(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        return write(*args, **kwargs)

    monkeypatch.setattr(dcp.FileSystemWriter, "write_data", full)
    said = refusal(capsys, plain / "config.yaml", tmp_path / "out", *endless)
    assert "cannot write checkpoint step-00000008 (No space left on device)" in said
    assert [steps for steps, _ in list_checkpoints(tmp_path / "out" / "checkpoints")] == [4]
    assert not list((tmp_path / "out" / "checkpoints").glob(".*"))
