"""A language model through the real entry point: restarts, layouts, what is refused."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch.distributed import checkpoint as dcp

from detalbert.training.checkpoints import list_checkpoints
from detalbert.training.parts import Reader
from lm.trial import Scores
from tests.conftest import TINY_LM, Train, configured, settings
from tests.fakes.damage import rewrite
from tests.fakes.runs import change, cut_and_go_on, newest, refusal, run
from tests.lm.tables import write_as_before
from tests.same_bits import differences


@pytest.fixture
def config(tmp_path: Path, cache_dir: Path) -> Path:
    path = tmp_path / "lm.yaml"
    path.write_text(yaml.safe_dump(configured(TINY_LM, cache_dir)))
    return path


def metrics(output: Path) -> dict[str, Any]:
    return json.loads((output / "metrics.json").read_text())


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    """Weights and the optimizer's state of a checkpoint, whole."""
    reader = Reader(folder)
    entries = reader.read_metadata().state_dict_metadata
    kinds = {name: (facts.size, facts.properties.dtype) for name, facts in entries.items()}
    found = {name: torch.empty(size, dtype=dtype) for name, (size, dtype) in kinds.items()}
    dcp.load(found, storage_reader=reader, no_dist=True)
    return found


def test_a_run_learns_and_says_how_well(config: Path, tmp_path: Path, capsys: Any) -> None:
    change(config, max_steps=60, validation_period=30, checkpoint_period=60)
    assert run(config, tmp_path / "out") == 0
    shown = capsys.readouterr().err
    assert "bits_per_byte" in shown and "windows of 32" in shown and "llama" in shown
    best, first = metrics(tmp_path / "out")["best"], 5.77  # ln 320
    assert best["loss"] < 0.7 * first and best["perplexity"] < 0.2 * 320
    assert best["bits_per_byte"] < best["baseline_bits_per_byte"]
    assert best["accuracy"] > 10
    scores = Scores(320, bytes_per_token=2.0, counts=False)
    found = scores.cross_slot_reduce([(np.array([8.0, 2.0, 4.0]), np.zeros(320))])
    assert found["loss"] == 2 and found["bits_per_byte"] == pytest.approx(2 / math.log(2) / 2)
    folder = newest(tmp_path / "out")
    assert json.loads((folder / "pretrained" / "config.json").read_text())["model_type"] == "llama"


def test_cut_and_gone_on_is_the_same_run(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(config, tmp_path / "uncut") == 0
    cut_and_go_on(config, tmp_path / "cut", monkeypatch, at=6)
    assert differences(tmp_path / "uncut", tmp_path / "cut") == []
    other = change(config, max_steps=12, base_learning_rate=2e-2)
    assert run(other, tmp_path / "other") == 0
    assert differences(tmp_path / "uncut", tmp_path / "other") != []


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory, cache_dir: Path, train: Train) -> Path:
    """A run of two processes, each with half of the model, every checkpoint kept."""
    folder = tmp_path_factory.mktemp("two")
    values = configured(TINY_LM, cache_dir, layout={"shard": 2})
    # Dropout's masks belong to a data rank: without any, other layouts compute the same.
    values["hyperparameters"]["model_config"]["attention_dropout"] = 0.0
    values["checkpoint_storage"] = {"save_trial_latest": 9}
    (folder / "lm.yaml").write_text(yaml.safe_dump(values))
    files = ["--config", folder / "lm.yaml", "--output-dir", folder / "out"]
    done = train(*files, *settings(profile_steps=4), processes=2)
    assert done.returncode == 0, done.stderr
    (folder / "shown").write_text(done.stderr)
    return folder


def test_rank_0_alone_profiles(two: Path) -> None:
    """And changes no bit: the other tests go on without one."""
    shown = (two / "shown").read_text()
    assert shown.count("profile of 4 steps:\n") == 1 and "all_gather" in shown
    assert len(list((two / "out" / "tensorboard").glob("*.pt.trace.json"))) == 1


def back_to(run_folder: Path, steps: int, copy: Path) -> Path:
    """A copy of a run as it was after `steps`."""
    shutil.copytree(run_folder, copy)
    for at, folder in list_checkpoints(copy / "checkpoints"):
        if at > steps:
            shutil.rmtree(folder)
    return copy


def test_each_process_writes_its_part_and_one_reads_both(two: Path, tmp_path: Path) -> None:
    """Two processes -> one: the same bits of weights and optimizer, then the same losses."""
    folder = newest(two / "out")
    sizes = [path.stat().st_size for path in sorted(folder.glob("*.distcp"))]
    assert len(sizes) == 2 and max(sizes) < 1.3 * min(sizes)
    alone = back_to(two / "out", 4, tmp_path / "one")
    values = yaml.safe_load((two / "lm.yaml").read_text())
    values["hyperparameters"]["layout"] = "auto"
    (tmp_path / "lm.yaml").write_text(yaml.safe_dump(values))
    assert run(tmp_path / "lm.yaml", alone, *settings(checkpoint_period=100, max_steps=12)) == 0
    mine, its = tensors(newest(alone)), tensors(folder)
    assert mine.keys() == its.keys() and len(mine) > 40
    far = {name: float((mine[name] - its[name]).abs().max()) for name in mine}
    assert max(far.values()) < 1e-4, far
    losses = [metrics(output)["last"]["loss"] for output in (alone, two / "out")]
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)


def test_two_processes_cut_and_gone_on_are_the_same_run(
    two: Path, tmp_path: Path, train: Train
) -> None:
    again = back_to(two / "out", 4, tmp_path / "again")
    done = train("--config", two / "lm.yaml", "--output-dir", again, processes=2)
    assert done.returncode == 0 and "resumed at step 4 of 12" in done.stderr, done.stderr
    assert differences(two / "out", again) == []


def test_a_damaged_part_is_passed_over(two: Path, tmp_path: Path, capsys: Any) -> None:
    copy = back_to(two / "out", 8, tmp_path / "copy")
    part = sorted(newest(copy).glob("*.distcp"))[1]
    part.write_bytes(part.read_bytes()[:-7])
    assert run(two / "lm.yaml", copy, *settings(layout="auto")) == 0
    shown = capsys.readouterr().err
    assert "__1_0.distcp is not as it was written" in shown and "resumed at step 6" in shown


def test_a_table_that_would_run_code_is_refused(two: Path, tmp_path: Path, capsys: Any) -> None:
    copy = back_to(two / "out", 4, tmp_path / "copy")
    folder = newest(copy)
    (folder / ".metadata").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    (folder / "tensors.json").unlink()
    rewrite(folder)
    said = refusal(capsys, two / "lm.yaml", copy, *settings(layout="auto"))
    assert "holds more than tensors: os.system" in said


@pytest.mark.parametrize("damage", [{"lm_head.weight": {"step": 4}}, []])
def test_numbers_of_another_model_are_refused(
    damage: Any, two: Path, tmp_path: Path, capsys: Any
) -> None:
    copy = back_to(two / "out", 4, tmp_path / "copy")
    folder = newest(copy)
    (folder / "numbers.json").write_text(json.dumps(damage))
    rewrite(folder)
    said = refusal(capsys, two / "lm.yaml", copy, *settings(layout="auto"))
    assert "numbers.json: does not fit: " in said


def test_a_run_of_596c121_on_python_3_11_2_goes_on(two: Path, tmp_path: Path, train: Train) -> None:
    """To the bits of the run that was not cut."""
    again = back_to(two / "out", 4, tmp_path / "again")
    write_as_before(newest(again))
    rewrite(newest(again))
    done = train("--config", two / "lm.yaml", "--output-dir", again, processes=2)
    assert done.returncode == 0 and "resumed at step 4 of 12" in done.stderr, done.stderr
    assert differences(two / "out", again) == []


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"layout": {"shard": 3}}, "layout: replicate 1 x shard 3 x tensor 1 is 3 processes"),
        ({"layout": {"shrad": 2}}, "did you mean 'shard'"),
        ({"optimizer": "radam"}, "hyperparameters.optimizer: 'radam' is not one of adamw"),
        ({"model_config": {"model_type": "phi"}}, "phi"),
        ({"max_tokens_per_forward": 31}, "max_tokens_per_forward: 31 is less than one window"),
        ({"max_tokens_per_forward": "auto"}, "takes no 'auto'"),
        ({"max_seq_length": 64}, "max_position_embeddings 32 is less than the 64"),
        ({"compile": True}, "hyperparameters.compile: not for a sharded model"),
    ],
)
def test_what_does_not_go_together(
    config: Path, tmp_path: Path, capsys: Any, changes: dict[str, Any], said: str
) -> None:
    change(config, **changes)
    assert said in refusal(capsys, config, tmp_path / "out")
    assert not (tmp_path / "out" / "metrics.json").exists()
