"""Restarts: the same run to the bit, safe loading, foreign checkpoints."""

import functools
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from determined.pytorch import load_trial_from_checkpoint_path
from huggingface_hub import constants

import model_def
from detalbert import hub
from detalbert.engine import determinism, order
from detalbert.engine.safe_load import read_weights
from detalbert.settings.hparams import HParams
from detalbert.settings.sections import parse_section
from detalbert.training import run_record
from detalbert.training.checkpoints import list_checkpoints, read_manifest
from detalbert.training.folder import claim_folder
from tests.conftest import NO_DROPOUT, ROOT, TINY, Train, settings
from tests.fakes.damage import rewrite
from tests.fakes.hub import put
from tests.fakes.no_models import PICKLES, plant
from tests.fakes.runs import change, cut_and_go_on, newest, refusal, run, steps_of, stop_after
from tests.same_bits import differences, of_value


@pytest.fixture
def exact_config(tiny_config: Path) -> Path:
    """Three epochs, with dropout, workers and several micro-batches a step."""
    steps = {"max_steps": 24, "validation_period": 8}
    return change(tiny_config, num_workers=1, max_tokens_per_forward=256, **steps)


def test_a_stopped_run_goes_on_as_if_nothing_had_been(
    exact_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    assert run(exact_config, tmp_path / "uncut") == 0
    cut_and_go_on(exact_config, tmp_path / "cut", monkeypatch, at=11)
    said = capsys.readouterr().err
    assert "INFO: asked to stop by SIGTERM; a checkpoint follows\n" in said
    assert "INFO: stopped after step 12; " in said and "run the same command again" in said
    assert "INFO: resumed at step 12 of 24 from " in said
    assert differences(tmp_path / "uncut", tmp_path / "cut") == []
    first, second = json.loads((tmp_path / "cut/metrics.json").read_text())["throughput"]["starts"]
    assert first["start"] < first["end"] < second["start"] < second["end"]


@pytest.mark.parametrize("part", ["order", "position"])
def test_without_its_parts_it_would_be_another_run(
    part: str, exact_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The comparison is not vacuous. (Randomness needs two ranks: see `test_chaos`.)"""
    assert run(exact_config, tmp_path / "uncut") == 0
    if part == "order":
        original = order._permutation
        monkeypatch.setattr(
            order, "_permutation", lambda seed, epoch, n: original(seed + os.getpid(), epoch, n)
        )
    else:
        loader = model_def.train_loader
        monkeypatch.setattr(
            model_def, "train_loader", lambda *a, **k: loader(*a, **{**k, "first_step": 0})
        )
    cut_and_go_on(exact_config, tmp_path / "cut", monkeypatch, at=11)
    assert "models_state_dict" in differences(tmp_path / "uncut", tmp_path / "cut")


def test_one_slot_then_two(
    exact_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, train: Train
) -> None:
    """Elastic: the same windows in the same steps, parameters to fp32 tolerance."""
    change(exact_config, model_config=NO_DROPOUT)
    assert run(exact_config, tmp_path / "uncut") == 0
    with monkeypatch.context() as patch:
        stop_after(patch, 11)
        assert run(exact_config, tmp_path / "cut") == 0
    finished = train("--config", exact_config, "--output-dir", tmp_path / "cut", processes=2)
    assert finished.returncode == 0, finished.stderr
    assert "resumed at step 12 of 24 from " in finished.stderr and "2 slot(s)" in finished.stderr
    uncut, cut = (read_weights(newest(tmp_path / n) / "state_dict.pth") for n in ("uncut", "cut"))
    for name, value in uncut.items():
        torch.testing.assert_close(value, cut[name], rtol=1e-4, atol=1e-5)


def test_a_branch_that_moves_changes_no_run(
    tiny_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub's cache has another config, with dropout, when the run is resumed."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    moved, tiny = tmp_path / "moved", ROOT / "embedded" / "albert-tiny"
    shutil.copytree(tiny, moved)
    config = json.loads((moved / "config.json").read_text())
    (moved / "config.json").write_text(json.dumps({**config, "hidden_dropout_prob": 0.5}))
    named = settings(model="org/tiny@main", model_config=None)
    for output, at in (("uncut", 99), ("cut", 7), ("cut", 99)):
        monkeypatch.setattr(hub, "commits", {})  # as in a process of its own
        put(tmp_path / "hub", "org/tiny", "main", tiny if at == 7 or output == "uncut" else moved)
        with monkeypatch.context() as patch:
            stop_after(patch, at)
            assert run(tiny_config, tmp_path / output, *named) == 0
    assert differences(tmp_path / "uncut", tmp_path / "cut") == []


def test_the_master_keeps_the_commits_and_no_login(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: dict[str, Any] = {}

    def call(method: str, path: str, json: Any = None) -> dict[str, Any]:
        kept.update(json or {})
        return kept

    monkeypatch.setattr(run_record.master, "call", call)
    monkeypatch.setattr(run_record, "_metadata", lambda: (7, "/api/v1/runs/7/metadata"))
    monkeypatch.setattr(hub, "commits", {"models/org/tiny@main": "0" * 40})
    run_record.keep_resolved({"data": {"text": "https://me:planted@example.org/a"}})
    assert kept["metadata"]["data"] == {"text": "https://***@example.org/a"}
    assert run_record.kept_commits() == hub.commits


def test_a_finished_run_is_finished(finished: Path, copied: Path, capsys: Any) -> None:
    before = (copied / "metrics.json").read_bytes()
    assert run(finished / "tiny.yaml", copied) == 0
    said = capsys.readouterr().err
    assert "resumed at step 12 of 12 from " in said and "the run is complete" in said
    assert (copied / "metrics.json").read_bytes() == before


def test_never_starts_over_and_deletes_nothing(finished: Path, copied: Path) -> None:
    old = {path.name for path in copied.iterdir()} - {".lock"}
    assert run(finished / "tiny.yaml", copied, "--resume", "never", *settings(max_steps=4)) == 0
    assert {path.name for path in (copied / "previous-1").iterdir()} == old
    assert steps_of(copied) == [4]


def test_a_checkpoint_by_its_path(finished: Path, copied: Path, tmp_path: Path) -> None:
    middle = list_checkpoints(copied / "checkpoints")[1][1]
    assert run(finished / "tiny.yaml", tmp_path / "other", "--resume", middle) == 0
    assert differences(finished / "out", tmp_path / "other") == []


def test_names_that_are_no_steps_are_passed_over(copied: Path) -> None:
    before = list_checkpoints(copied / "checkpoints")
    for name in ("step-²", "step-", "step-1a", "step-٣"):
        (copied / "checkpoints" / name).mkdir()
    assert list_checkpoints(copied / "checkpoints") == before


def refused(config: Path, output: Path, message: str, capsys: Any, *more: Any) -> None:
    before = {path: path.read_bytes() for path in output.rglob("*") if path.is_file()}
    assert message in refusal(capsys, config, output, *more)
    assert {path: path.read_bytes() for path in output.rglob("*") if path.is_file()} == before


def test_another_run_is_refused_and_the_difference_named(
    finished: Path, copied: Path, capsys: Any, fork: None
) -> None:
    config = finished / "tiny.yaml"
    rate = settings(base_learning_rate=0.5)
    refused(config, copied, "base_learning_rate: was 0.001 in", capsys, *rate)
    shape = {**TINY["hyperparameters"]["model_config"], "num_hidden_layers": 3}
    refused(config, copied, "model_config: was", capsys, *settings(model_config=shape))
    fewer = ["--set", "data.max_train_examples=59"]
    refused(config, copied, "data.max_train_examples: was 60 in", capsys, *fewer)
    free = settings(num_workers=1, checkpoint_period=5, max_tokens_per_forward=300)
    assert run(config, copied, *free) == 0


def test_a_new_key_refuses_no_older_checkpoint(
    finished: Path, copied: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One whose version knew neither `hyperparameters.smoothing` nor `data.skip_invalid`."""

    @dataclass(frozen=True)
    class Newer(HParams):
        smoothing: float = 0.0

    read = functools.partial(parse_section, Newer, "hyperparameters")
    parsers = model_def.FINE_TUNING.parsers._replace(hyperparameters=read)
    newer = model_def.FINE_TUNING._replace(parsers=parsers)
    monkeypatch.setattr(model_def, "FINE_TUNING", newer)
    shutil.rmtree(newest(copied))
    kept = read_manifest(newest(copied))["run"]
    del kept["data.skip_invalid"]
    rewrite(newest(copied), run=kept)
    for key, was, more in (
        ("hyperparameters.smoothing", "0.0", settings(smoothing=0.5)),
        ("data.skip_invalid", "False", ["--set", "data.skip_invalid=true"]),
    ):
        refused(finished / "tiny.yaml", copied, f"{key}: was {was} in", capsys, *more)
    assert run(finished / "tiny.yaml", copied) == 0
    assert differences(finished / "out", copied) == []


def test_another_format_is_refused(finished: Path, copied: Path, capsys: Any) -> None:
    rewrite(newest(copied), format=99)
    refused(finished / "tiny.yaml", copied, "checkpoint format 99", capsys)


@pytest.mark.parametrize("name", PICKLES)
def test_a_pickle_with_a_foreign_class_is_refused(
    name: str, finished: Path, copied: Path, capsys: Any, tmp_path: Path
) -> None:
    checkpoint = newest(copied)
    plant(checkpoint, name, tmp_path / "pwned")
    rewrite(checkpoint)
    missing = name == "workload_sequencer.pkl"
    said = "trial_state.pkl: not the tensors and numbers" if missing else f"{name}: not the"
    refused(finished / "tiny.yaml", copied, said, capsys)
    assert not (tmp_path / "pwned").exists()


def test_weights_of_another_model_are_refused(finished: Path, copied: Path, capsys: Any) -> None:
    checkpoint = newest(copied)
    content = torch.load(checkpoint / "state_dict.pth", weights_only=True)
    content["models_state_dict"][0].popitem()
    torch.save(content, checkpoint / "state_dict.pth")
    rewrite(checkpoint)
    assert "does not fit this model" in refusal(capsys, finished / "tiny.yaml", copied)


def test_a_checkpoint_that_is_not_there(finished: Path, copied: Path, capsys: Any) -> None:
    missing = ["--resume", copied / "checkpoints" / "step-00000099"]
    refused(finished / "tiny.yaml", copied, "not a complete checkpoint", capsys, *missing)


def test_a_second_process_is_refused(finished: Path, copied: Path, capsys: Any) -> None:
    with claim_folder(copied):
        refused(finished / "tiny.yaml", copied, "another run is writing there", capsys)


def test_determined_loads_the_trial(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`load_trial_from_checkpoint_path` fails on torch >= 2.6 without the allowed globals."""
    path = newest(finished / "out")
    trial = load_trial_from_checkpoint_path(str(path), trial_class=model_def.SquadTrial)
    saved = read_weights(path / "state_dict.pth")
    assert of_value(dict(trial.model.state_dict())) == of_value(dict(saved))


def test_seeds_of_steps_and_ranks_differ() -> None:
    drawn = set()
    for seed in (0, 1):
        for step in (0, 1, 10):
            for rank in (0, 1, 63):
                determinism.seed_step(seed, step, rank)
                drawn.add(float(torch.rand(())))
    assert len(drawn) == 18
