"""`pretrain.score`: a pretraining's checkpoints fine-tuned, by the real train.py."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

import train
from detalbert.training.folder import claim_folder
from detalbert.training.manifest import read_manifest
from pretrain import score
from tests.conftest import TINY, TINY_PRETRAINING, Once, configured, settings
from tests.fakes.checkpoints import CheckpointMaster, Stored
from tests.fakes.damage import rewrite
from tests.fakes.runs import run, stop_after, train_into
from tests.same_bits import differences


@pytest.fixture(scope="module")
def pretrained(once: Once, cache_dir: Path) -> Path:
    """A pretraining with checkpoints after 4, 8 and 12 steps, and validations after 8 and 12."""
    config = configured(TINY_PRETRAINING, cache_dir, validation_period=8)
    config["checkpoint_storage"] = {"save_trial_latest": 3}
    return once("pretrained", lambda folder: train_into(folder, config)) / "out"


@pytest.fixture
def recipe(tmp_path: Path, cache_dir: Path) -> Path:
    """A fine-tuning of three steps; its own model and tokenizer are not used."""
    config = configured(TINY, cache_dir, max_steps=3, reporting_period=1)
    config["data"].update(max_validation_examples=20)
    config["hyperparameters"].update(max_seq_length=64, doc_stride=16, max_query_length=24)
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def scored(pretraining: Any, recipe: Path, output: Path, *more: Any) -> int:
    words = [pretraining, "--config", recipe, "--output-dir", output, *more]
    return score.main([str(word) for word in words])


def rows_in(output: Path) -> list[dict[str, Any]]:
    return json.loads((output / "scores.json").read_text())["rows"]


def test_scores_are_those_by_hand_and_a_stopped_run_goes_on(
    pretrained: Path, recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Stopped by a real signal within the second of three, it does the rest only."""
    out, started, start = tmp_path / "out", [], train.main

    def start_and_stop_the_second(words: list[str]) -> int:
        started.append(Path(words[3]).name)
        with monkeypatch.context() as patch:
            if len(started) == 2:
                stop_after(patch, 1)
            return start(words)

    monkeypatch.setattr(train, "main", start_and_stop_the_second)
    assert scored(pretrained, recipe, out) == 143
    assert started == ["step-00000004", "step-00000008"] and len(rows_in(out)) == 1
    assert "stopped after step 1; run the same command again to resume" in capsys.readouterr().err
    with claim_folder(out / "step-00000008"):  # no process holds it
        pass
    assert scored(pretrained, recipe, out) == 0
    assert started[2:] == ["step-00000008", "step-00000012"]
    assert all({"device", "versions", "commit"} <= row.keys() for row in rows_in(out))

    first, second, third = rows_in(out)
    last = json.loads((pretrained / "metrics.json").read_text())["last"]
    assert "mlm_accuracy" not in first  # no validation there
    assert all(third[name] == last[name] for name in ("mlm_accuracy", "sop_accuracy"))
    hand, model = tmp_path / "hand", pretrained / "checkpoints" / "step-00000008"
    changes = [*score.OWN, f"hyperparameters.model={model}"]
    assert run(recipe, hand, *(word for change in changes for word in ("--set", change))) == 0
    assert differences(hand, out / "step-00000008") == []
    best = json.loads((hand / "metrics.json").read_text())["best"]
    assert all(second[name] == best[name] for name in ("exact", "f1")) and second["f1"] > 0
    table = (out / "scores.md").read_text()
    assert table in capsys.readouterr().out
    assert table.splitlines()[-1].endswith(f"{third['exact']:.2f} | {third['f1']:.2f} |")
    assert scored(pretrained, recipe, out) == 0 and started[5:] == []  # the hand's is the fifth
    refuses_to_mix(pretrained, recipe, out, capsys)


def test_a_fine_tuning_that_stops_early_is_scored(
    pretrained: Path, recipe: Path, tmp_path: Path, capsys: Any
) -> None:
    keys = {"base_learning_rate": 1e-30, "validation_period": 1, "early_stopping": 1}
    more = settings(**keys)  # nothing is learned
    assert scored(pretrained, recipe, tmp_path / "out", *more) == 0
    assert capsys.readouterr().err.count("stopped early: ") == len(rows_in(tmp_path / "out")) == 3


def refuses_to_mix(pretrained: Path, recipe: Path, out: Path, capsys: Any) -> None:
    """Another recipe, or another pretraining in the place of the scored one."""
    capsys.readouterr()
    before = (out / "scores.json").read_bytes()
    assert scored(pretrained, recipe, out, "--set", "hyperparameters.max_steps=4") == 2
    assert_one_line(capsys, "hyperparameters.max_steps: was 3 in ", "give another --output-dir")
    assert (out / "scores.json").read_bytes() == before
    other = out / "other"
    shutil.copytree(pretrained / "checkpoints", other / "checkpoints")
    first, last = (other / "checkpoints" / f"step-{steps:08d}" for steps in (4, 12))
    kept = read_manifest(last)["run"]
    rewrite(last, run={**kept, "hyperparameters.seed": 43})
    assert scored(other, recipe, out) == 2
    assert_one_line(capsys, "hyperparameters.seed: was 42 in ")
    (first / "state_dict.pth").write_bytes(b"")
    assert scored(other, recipe, out) == 2
    assert_one_line(capsys, "step-00000004: damaged (state_dict.pth is not as it was written)")
    shutil.rmtree(first)
    rewrite(last, run=kept)
    assert scored(other, recipe, out) == 0
    assert "the checkpoint after step 4 is gone; its scores stay" in capsys.readouterr().err
    assert len(rows_in(out)) == 3


def assert_one_line(capsys: Any, *said: str) -> None:
    error = capsys.readouterr().err
    assert all(text in error for text in said) and error.count("\n") == 1, error


SQUAD = {"data": {"train": "generated"}}


def test_bad_input_is_one_line(pretrained: Path, recipe: Path, tmp_path: Path, capsys: Any) -> None:
    out, foreign = tmp_path / "out", tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "scores.json").write_text('{"f1": 1}')
    for said, (name, *words) in {
        "none: no checkpoint there": ["none"],
        "not a fine-tuning on SQuAD": [pretrained, "--config", pretrained / "config.yaml"],
        "did you mean 'max_steps'?": [pretrained, "--set", "hyperparameters.max_step=1"],
        "not scores of a pretraining": [pretrained, "--output-dir", foreign],
    }.items():
        assert scored(name, recipe, out, *words) == 2
        assert_one_line(capsys, said)
    assert not out.exists() and (foreign / "scores.json").read_text() == '{"f1": 1}'


def test_an_experiment_of_a_cluster(
    pretrained: Path, recipe: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the checkpoints, newest first, one of them twice, and one that failed."""
    data = yaml.safe_load((pretrained / "config.yaml").read_text())["data"]
    stored = []
    for digit, steps, ended in [("a", 12, 9), ("b", 8, 7), ("c", 8, 6), ("d", 4, 3)]:
        state = "ERROR" if digit == "d" else "COMPLETED"
        place = tmp_path / f"{digit * 8}-1111-2222-3333-444444444444"
        shutil.copytree(pretrained / "checkpoints" / f"step-{steps:08d}", place)
        scores = {"mlm_accuracy": 5.0, "loss": 9.0} if digit == "a" else {}
        stored.append(Stored(place.name, place, 0.0, ended, state, steps, scores, {"data": data}))
    short, out = ["--set", "hyperparameters.max_steps=1"], tmp_path / "out"
    with CheckpointMaster(stored, {"type": "directory", "container_path": str(tmp_path)}) as master:
        master.log_in(monkeypatch, tmp_path)
        assert scored("experiment:3", recipe, out, *short) == 0
        first, last = rows_in(out)
        assert (first["steps"], last["steps"]) == (8, 12)
        assert first["checkpoint"][0] == "b" and "mlm_accuracy" not in first
        assert last["checkpoint"][0] == "a" and last["mlm_accuracy"] == 5.0
        capsys.readouterr()
        newest, second = master.stored[:2]
        for name, there, said in (
            ("experiment:4", master.stored, "the master knows no such thing"),
            ("experiment:3", [newest._replace(trial=8), second], "2 trials; give one, such as tr"),
            ("trial:7", [second._replace(config=SQUAD)], "not a pretraining of ALBERT"),
            ("trial:7", [second._replace(state="ERROR")], "it has no finished checkpoint"),
        ):
            master.stored = there
            assert scored(name, recipe, out) == 2
            assert_one_line(capsys, f"{name}: {said}")
