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
    pretrained: Path,
    recipe: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Stopped by a real signal within the second of three, it does the rest only."""
    out = tmp_path / "out"
    started = []
    start = train.main

    def start_and_stop_the_second(words: list[str]) -> int:
        started.append(Path(words[3]).name)
        with monkeypatch.context() as patch:
            if len(started) == 2:
                stop_after(patch, 1)
            return start(words)

    monkeypatch.setattr(train, "main", start_and_stop_the_second)
    assert scored(pretrained, recipe, out) == 143
    assert started == ["step-00000004", "step-00000008"]
    assert len(rows_in(out)) == 1
    assert "stopped after step 1; run the same command again to resume" in capsys.readouterr().err
    with claim_folder(out / "step-00000008"):  # no process holds it
        pass

    # The same command does what is missing, and nothing when that is there.
    assert scored(pretrained, recipe, out) == 0
    assert started[2:] == ["step-00000008", "step-00000012"]
    table = (out / "scores.md").read_text()
    assert table in capsys.readouterr().out
    assert_scores(pretrained, table, rows_in(out))
    assert_same_by_hand(pretrained, recipe, out, tmp_path / "hand")
    started.clear()
    assert scored(pretrained, recipe, out) == 0
    assert started == []
    refuses_to_mix(pretrained, recipe, out, capsys)


def assert_scores(pretrained: Path, table: str, rows: list[dict[str, Any]]) -> None:
    """Assert that the rows have scores of the pretraining if a validation was there."""
    assert all({"device", "versions", "commit"} <= row.keys() for row in rows)
    first, _, third = rows
    assert "mlm_accuracy" not in first  # no validation there
    last = json.loads((pretrained / "metrics.json").read_text())["last"]
    assert third["mlm_accuracy"] == last["mlm_accuracy"]
    assert third["sop_accuracy"] == last["sop_accuracy"]
    assert table.splitlines()[-1].endswith(f"{third['exact']:.2f} | {third['f1']:.2f} |")


def assert_same_by_hand(pretrained: Path, recipe: Path, out: Path, hand: Path) -> None:
    """Assert that a run of train.py from the second checkpoint has its files and scores."""
    model = pretrained / "checkpoints" / "step-00000008"
    words = []
    for change in (*score.OWN, f"hyperparameters.model={model}"):
        words += ["--set", change]
    assert run(recipe, hand, *words) == 0
    assert differences(hand, out / "step-00000008") == []

    best = json.loads((hand / "metrics.json").read_text())["best"]
    second = rows_in(out)[1]
    assert second["exact"] == best["exact"]
    assert second["f1"] == best["f1"] > 0


def test_a_fine_tuning_that_stops_early_is_scored(
    pretrained: Path, recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    # At this rate nothing is learned.
    stopping = settings(base_learning_rate=1e-30, validation_period=1, early_stopping=1)

    assert scored(pretrained, recipe, out, *stopping) == 0

    assert len(rows_in(out)) == 3
    assert capsys.readouterr().err.count("stopped early: ") == 3


def refuses_to_mix(
    pretrained: Path, recipe: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Score by another recipe, or another pretraining in the place of the scored one."""
    capsys.readouterr()
    before = (out / "scores.json").read_bytes()
    assert scored(pretrained, recipe, out, "--set", "hyperparameters.max_steps=4") == 2
    assert_one_line(capsys, "hyperparameters.max_steps: was 3 in ", "give another --output-dir")
    assert (out / "scores.json").read_bytes() == before

    # Another seed.
    other = out / "other"
    checkpoints = other / "checkpoints"
    shutil.copytree(pretrained / "checkpoints", checkpoints)
    last = checkpoints / "step-00000012"
    settings_saved = read_manifest(last)["run"]
    rewrite(last, run={**settings_saved, "hyperparameters.seed": 43})
    assert scored(other, recipe, out) == 2
    assert_one_line(capsys, "hyperparameters.seed: was 42 in ")

    # A damaged checkpoint.
    first = checkpoints / "step-00000004"
    (first / "state_dict.pth").write_bytes(b"")
    assert scored(other, recipe, out) == 2
    assert_one_line(capsys, "step-00000004: damaged (state_dict.pth is not as it was written)")

    # One that is gone may be: it is scored already.
    shutil.rmtree(first)
    rewrite(last, run=settings_saved)
    assert scored(other, recipe, out) == 0
    assert "the checkpoint after step 4 is gone; its scores stay" in capsys.readouterr().err
    assert len(rows_in(out)) == 3


def assert_one_line(capsys: pytest.CaptureFixture[str], *texts: str) -> None:
    """Assert that standard error is one line, which holds the texts."""
    error = capsys.readouterr().err
    assert error.count("\n") == 1, error
    for text in texts:
        assert text in error


SQUAD = {"data": {"train": "generated"}}


def test_bad_input_is_one_line(
    pretrained: Path, recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "scores.json").write_text('{"f1": 1}')
    out = tmp_path / "out"
    cases: dict[str, list[Any]] = {
        "none: no checkpoint there": ["none"],
        "not a fine-tuning on SQuAD": [pretrained, "--config", pretrained / "config.yaml"],
        "did you mean 'max_steps'?": [pretrained, "--set", "hyperparameters.max_step=1"],
        "not scores of a pretraining": [pretrained, "--output-dir", foreign],
    }
    for problem, (pretraining, *words) in cases.items():
        assert scored(pretraining, recipe, out, *words) == 2
        assert_one_line(capsys, problem)
    assert not out.exists()
    assert (foreign / "scores.json").read_text() == '{"f1": 1}'


def stored_checkpoints(pretrained: Path, folder: Path) -> list[Stored]:
    """Return a cluster's checkpoints, newest first, one of them twice, and one that failed."""
    data = yaml.safe_load((pretrained / "config.yaml").read_text())["data"]
    newest = {"mlm_accuracy": 5.0, "loss": 9.0}
    stored = []
    for digit, steps, ended in [("a", 12, 9), ("b", 8, 7), ("c", 8, 6), ("d", 4, 3)]:
        uuid = f"{digit * 8}-1111-2222-3333-444444444444"
        shutil.copytree(pretrained / "checkpoints" / f"step-{steps:08d}", folder / uuid)
        checkpoint = Stored(
            uuid,
            folder / uuid,
            f1=0.0,
            ended=ended,
            state="ERROR" if digit == "d" else "COMPLETED",
            steps=steps,
            scores=newest if digit == "a" else {},
            config={"data": data},
        )
        stored.append(checkpoint)
    return stored


def test_an_experiment_of_a_cluster(
    pretrained: Path,
    recipe: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stored = stored_checkpoints(pretrained, tmp_path)
    out = tmp_path / "out"
    with CheckpointMaster(stored, {"type": "directory", "container_path": str(tmp_path)}) as master:
        master.log_in(monkeypatch, tmp_path)
        assert scored("experiment:3", recipe, out, "--set", "hyperparameters.max_steps=1") == 0
        first, last = rows_in(out)
        assert first["steps"] == 8
        assert first["checkpoint"].startswith("b")  # the newer of two
        assert "mlm_accuracy" not in first
        assert last["steps"] == 12
        assert last["checkpoint"].startswith("a")
        assert last["mlm_accuracy"] == 5.0
        capsys.readouterr()

        newest, second = stored[:2]
        cases = [
            ("experiment:4", stored, "the master knows no such thing"),
            ("experiment:3", [newest._replace(trial=8), second], "2 trials; give one, such as tr"),
            ("trial:7", [second._replace(config=SQUAD)], "not a pretraining of ALBERT"),
            ("trial:7", [second._replace(state="ERROR")], "it has no finished checkpoint"),
        ]
        for name, checkpoints, problem in cases:
            master.stored = checkpoints
            assert scored(name, recipe, out) == 2
            assert_one_line(capsys, f"{name}: {problem}")
