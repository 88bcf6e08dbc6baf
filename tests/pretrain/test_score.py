"""`pretrain.score`: a pretraining's checkpoints fine-tuned, by the real train.py."""

import json
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import train
from detalbert.training.checkpoints import read_manifest
from detalbert.training.folder import claim_folder
from pretrain import score
from tests.conftest import TINY, TINY_PRETRAINING, Once, configured
from tests.fakes.checkpoints import CheckpointMaster, Stored
from tests.fakes.damage import rewrite
from tests.fakes.runs import run, stop_after, wait_for
from tests.same_bits import differences


@pytest.fixture(scope="module")
def pretrained(once: Once, cache_dir: Path) -> Path:
    """A pretraining with checkpoints after 4, 8 and 12 steps, and validations after 8 and 12."""
    config = configured(TINY_PRETRAINING, cache_dir, validation_period=8)
    config["checkpoint_storage"] = {"save_trial_latest": 3}

    def fill(folder: Path) -> None:
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
        assert run(folder / "config.yaml", folder / "run") == 0

    return once("pretrained", fill) / "run"


@pytest.fixture
def recipe(tmp_path: Path, cache_dir: Path) -> Path:
    """A fine-tuning of six steps."""
    config = configured(TINY, cache_dir, model="mine", max_steps=6, validation_period=3)
    config["hyperparameters"].update(max_seq_length=64, doc_stride=16, max_query_length=24)
    del config["hyperparameters"]["model_config"], config["data"]["tokenizer"]
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def scored(pretraining: Any, recipe: Path, output: Path, *more: str) -> int:
    words = [pretraining, "--config", recipe, "--output-dir", output, *more]
    return score.main([str(word) for word in words])


def rows_in(output: Path) -> list[dict[str, Any]]:
    return json.loads((output / "scores.json").read_text())["rows"]


def test_scores_are_those_by_hand_and_a_stopped_run_goes_on(
    pretrained: Path, recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Stopped by a real signal within the third of three, it does the rest of that one only."""
    out, started, start = tmp_path / "out", [], train.main

    def start_and_stop_the_third(words: list[str]) -> int:
        started.append(Path(words[3]).name)
        with monkeypatch.context() as patch:
            if len(started) == 3:
                stop_after(patch, 2)
            return start(words)

    monkeypatch.setattr(train, "main", start_and_stop_the_third)
    assert scored(pretrained, recipe, out) == 0
    assert started[:2] == [f"step-{row['steps']:08d}" for row in rows_in(out)]
    assert "stopped; run the same command again to go on" in capsys.readouterr().err
    assert scored(pretrained, recipe, out) == 0
    assert started[2:] == ["step-00000012"] * 2

    first, _, third = rows_in(out)
    last = json.loads((pretrained / "metrics.json").read_text())["last"]
    assert "mlm_accuracy" not in first  # no validation there
    assert all(third[name] == last[name] for name in ("mlm_accuracy", "sop_accuracy"))
    hand, model = tmp_path / "hand", pretrained / "checkpoints" / "step-00000012"
    assert run(recipe, hand, "--set", f"hyperparameters.model={model}") == 0
    assert differences(hand, out / "step-00000012") == []
    best = json.loads((hand / "metrics.json").read_text())["best"]
    assert all(third[name] == best[name] for name in ("exact", "f1")) and third["f1"] > 0
    table = (out / "scores.md").read_text()
    assert table in capsys.readouterr().out
    assert table.splitlines()[-1].endswith(f"{third['exact']:.2f} | {third['f1']:.2f} |")
    assert (out / "scores.svg").read_text().rstrip().endswith("</svg>")
    assert scored(pretrained, recipe, out) == 0 and started[5:] == []
    refuses_to_mix(pretrained, recipe, out, capsys)


def refuses_to_mix(pretrained: Path, recipe: Path, out: Path, capsys: Any) -> None:
    """Another recipe, or another pretraining in the place of the scored one."""
    capsys.readouterr()
    before = (out / "scores.json").read_bytes()
    assert scored(pretrained, recipe, out, "--set", "hyperparameters.max_steps=5") == 2
    assert_one_line(capsys, "hyperparameters.max_steps: was 6 in ", "give another --output-dir")
    assert (out / "scores.json").read_bytes() == before
    other = out / "other"
    shutil.copytree(pretrained / "checkpoints", other / "checkpoints")
    last = other / "checkpoints" / "step-00000012"
    kept = read_manifest(last)["run"]
    rewrite(last, run={**kept, "hyperparameters.seed": 43})
    assert scored(other, recipe, out) == 2
    assert_one_line(capsys, "hyperparameters.seed: was 42 in ")
    (other / "checkpoints" / "step-00000004" / "state_dict.pth").write_bytes(b"")
    assert scored(other, recipe, out) == 2
    assert_one_line(capsys, "step-00000004: damaged (state_dict.pth is not as it was written)")
    shutil.rmtree(other / "checkpoints" / "step-00000004")
    rewrite(last, run=kept)
    assert scored(other, recipe, out) == 0
    assert "the checkpoint after step 4 is gone; its scores stay" in capsys.readouterr().err
    assert len(rows_in(out)) == 3


def test_a_signal_ends_the_fine_tuning_too(pretrained: Path, recipe: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"

    def stop_when_it_runs() -> None:
        wait_for((out / "step-00000004" / "config.yaml").exists)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop_when_it_runs, daemon=True).start()
    assert scored(pretrained, recipe, out, "--set", "hyperparameters.max_steps=2000") == 0
    assert rows_in(out) == [] and not (out / "step-00000008").exists()
    with claim_folder(out / "step-00000004"):  # no process holds it
        pass


def assert_one_line(capsys: Any, *said: str) -> None:
    error = capsys.readouterr().err
    assert all(text in error for text in said) and error.count("\n") == 1, error


BAD = {
    "no run": (["none"], "none: no checkpoint there"),
    "another workload": (["--config", "pretraining"], "not a fine-tuning on SQuAD"),
    "random weights": (["--set", "hyperparameters.model_config={}"], "a checkpoint has its own"),
    "another vocabulary": (["--set", "data.tokenizer=x"], "--set data.tokenizer=null"),
    "unknown key": (["--set", "hyperparameters.max_step=1"], "did you mean 'max_steps'?"),
    "scores of something else": (["--output-dir", "foreign"], "not scores of a pretraining"),
}


@pytest.mark.parametrize("fault", BAD)
def test_bad_input_is_one_line(
    fault: str, pretrained: Path, recipe: Path, tmp_path: Path, capsys: Any
) -> None:
    (words, said), out = BAD[fault], tmp_path / "out"
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "scores.json").write_text('{"f1": 1}')
    places = {"pretraining": pretrained / "config.yaml", "foreign": foreign}
    words = [str(places.get(word, word)) for word in words]
    named = words.pop() if words == ["none"] else pretrained
    assert scored(named, recipe, out, *words) == 2
    assert_one_line(capsys, said)
    assert not out.exists() and (foreign / "scores.json").read_text() == '{"f1": 1}'


@pytest.fixture
def master(
    pretrained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[CheckpointMaster]:
    """Experiment 3 has the checkpoints, newest first, one of them twice, and one that failed."""
    text = yaml.safe_load((pretrained / "config.yaml").read_text())
    stored = []
    runs = [("a", 12, 9), ("b", 8, 7), ("c", 8, 6), ("d", 4, 3)]
    for digit, steps, ended in runs:
        state = "ERROR" if digit == "d" else "COMPLETED"
        uuid = f"{digit * 8}-1111-2222-3333-444444444444"
        shutil.copytree(pretrained / "checkpoints" / f"step-{steps:08d}", tmp_path / uuid)
        scores = {"mlm_accuracy": 5.0, "loss": 9.0} if digit == "a" else {}
        stored.append(
            Stored(uuid, tmp_path / uuid, 0.0, ended, state, steps, scores, {"data": text["data"]})
        )
    storage = {"type": "directory", "container_path": str(tmp_path)}
    with CheckpointMaster(stored, storage) as master:
        master.log_in(monkeypatch, tmp_path)
        yield master


def test_an_experiment_of_a_cluster(
    master: CheckpointMaster,
    recipe: Path,
    tmp_path: Path,
    capsys: Any,
) -> None:
    short = "--set", "hyperparameters.max_steps=1"
    assert scored("experiment:3", recipe, tmp_path / "out", *short) == 0
    first, last = rows_in(tmp_path / "out")
    assert (first["steps"], last["steps"]) == (8, 12)
    assert first["checkpoint"][0] == "b" and "mlm_accuracy" not in first
    assert last["checkpoint"][0] == "a" and last["mlm_accuracy"] == 5.0
    capsys.readouterr()
    cases = {
        "experiment:4": "experiment:4: the master knows no such thing",
        "experiment:3": "experiment:3: 2 trials; give one, such as trial:7",
    }
    master.stored[0] = master.stored[0]._replace(trial=8)
    for name, said in cases.items():
        assert scored(name, recipe, tmp_path / "out") == 2
        assert_one_line(capsys, said)
    master.stored = [master.stored[1]._replace(config={"data": {"train": "generated"}})]
    assert scored("trial:7", recipe, tmp_path / "out") == 2
    assert_one_line(capsys, "trial:7: not a pretraining of ALBERT")
    master.stored = [master.stored[0]._replace(state="ERROR")]
    assert scored("trial:7", recipe, tmp_path / "out") == 2
    assert_one_line(capsys, "trial:7: it has no finished checkpoint")
