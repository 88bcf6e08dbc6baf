"""Restarts: the same run to the bit, safe loading, foreign checkpoints."""

import json
import shutil
from types import SimpleNamespace

import pytest
import torch
import yaml
from determined.pytorch import load_trial_from_checkpoint_path
from huggingface_hub import constants

import model_def
from detalbert import hub
from detalbert.engine.safe_load import read_weights
from detalbert.files import write_own
from detalbert.training import master
from detalbert.training.folder import claim_folder, list_checkpoints
from tests.conftest import NO_DROPOUT, ROOT, TINY, settings
from tests.fakes.damage import rewrite
from tests.fakes.hub import put
from tests.fakes.no_models import PICKLES, plant
from tests.fakes.questions import load_world
from tests.fakes.runs import (
    change,
    cut_and_go_on,
    metrics,
    newest,
    refusal,
    run,
    steps_of,
    stop_after,
)
from tests.same_bits import differences, of_value


def test_a_stopped_run_goes_on_as_if_nothing_had_been(tiny_config, tmp_path, monkeypatch, capsys):
    """In the third epoch, with dropout, workers and several micro-batches a step."""
    uncut = tmp_path / "uncut"
    cut = tmp_path / "cut"
    change(tiny_config, max_steps=18, num_workers=1, max_tokens_per_forward=256)
    assert run(tiny_config, uncut) == 0

    cut_and_go_on(tiny_config, cut, monkeypatch, at=11)

    shown = capsys.readouterr().err
    assert "asked to stop" not in shown  # the signal's handler has said it
    assert "INFO: stopped after step 12; " in shown
    assert "run the same command again" in shown
    assert "INFO: resumed at step 12 of 18 from " in shown
    assert differences(uncut, cut) == []
    first, second = metrics(cut)["throughput"]["starts"]
    assert first["start"] < first["end"] < second["start"] < second["end"]


SHAPE = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 192,
}
OTHER_ENCODERS = {
    "deberta": {
        "model_type": "deberta-v2",
        "relative_attention": True,
        "max_relative_positions": 64,
        "type_vocab_size": 0,
        "position_biased_input": False,
        "pos_att_type": ["p2c", "c2p"],
    },
    "modernbert": {
        "model_type": "modernbert",
        "local_attention": 16,
        "attention_dropout": 0.1,
    },
}


@pytest.mark.soak
@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("name", OTHER_ENCODERS)
def test_cuts_of_other_encoders_end_in_the_uncut_bits(
    name, processes, tiny_config, tmp_path, train
):
    """Padded, and with local attention; with dropout and several micro-batches a step."""
    config = yaml.safe_load(tiny_config.read_text())
    config["hyperparameters"].update(
        model_config=SHAPE | OTHER_ENCODERS[name],
        max_steps=18,
        checkpoint_period=2,
        max_tokens_per_forward=256,
    )
    config["checkpoint_storage"] = {"save_trial_latest": 9}
    tiny_config.write_text(yaml.safe_dump(config))
    uncut = tmp_path / "uncut"

    def start(output):
        """Start or resume the run; what is logged."""
        ended = train("--config", tiny_config, "--output-dir", output, processes=processes)
        assert ended.returncode == 0, ended.stderr
        return ended.stderr

    padded = "padded: its attention is not softmax(q k) v alone" in start(uncut)
    assert padded == (name == "deberta")
    for cut in range(2, 18, 2):
        resumed = shutil.copytree(uncut, tmp_path / str(cut))
        while steps_of(resumed)[-1] > cut:
            shutil.rmtree(newest(resumed))
        assert f"resumed at step {cut} of 18" in start(resumed)
        assert differences(uncut, resumed) == []


# Scores that logits themselves are in, not answers alone.
OF_LOGITS = [
    "loss",
    "best_exact_thresh",
    "best_f1_thresh",
    "calibration_error",
    "probability_slope",
    "probability_offset",
    "probability_null_offset",
    "uncalibrated",
]


def assert_close_runs(output, expected):
    """Weights and scores to fp32 tolerance, equal answers."""
    scores = metrics(expected)["last"]
    for name in OF_LOGITS:
        scores[name] = pytest.approx(scores[name], rel=1e-3, abs=1e-4)
    assert metrics(output)["last"] == scores
    weights = read_weights(newest(expected) / "state_dict.pth")
    for name, weight in read_weights(newest(output) / "state_dict.pth").items():
        torch.testing.assert_close(weight, weights[name], rtol=1e-4, atol=1e-5)
    answers = (expected / "predictions.json").read_text()
    assert (output / "predictions.json").read_text() == answers


def test_two_slots_then_one_and_one_alone(tiny_config, tmp_path, train, capsys):
    """Elastic: the same windows in the same steps."""
    change(tiny_config, model_config=NO_DROPOUT)
    two_slots = tmp_path / "two"
    then_one = tmp_path / "less"
    one_slot = tmp_path / "one"
    arguments = ["--config", tiny_config, "--output-dir", two_slots]
    ended = train(*arguments, "--set", "checkpoint_storage.save_trial_latest=9", processes=2)
    assert ended.returncode == 0, ended.stderr
    assert "2 slots" in ended.stderr, ended.stderr
    shutil.copytree(two_slots, then_one)
    shutil.rmtree(newest(then_one))

    assert run(tiny_config, then_one) == 0
    assert run(tiny_config, one_slot) == 0

    assert "resumed at step 8 of 12 from " in capsys.readouterr().err
    assert_close_runs(two_slots, one_slot)
    assert_close_runs(then_one, one_slot)


def test_a_branch_that_moves_changes_no_run(tiny_config, tmp_path, monkeypatch):
    """The hub's cache has another config, with dropout, when the run is resumed."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    tiny = ROOT / "embedded" / "albert-tiny"
    moved = shutil.copytree(tiny, tmp_path / "moved")
    config = json.loads((moved / "config.json").read_text())
    config["hidden_dropout_prob"] = 0.5
    (moved / "config.json").write_text(json.dumps(config))
    output = tmp_path / "out"
    options = settings(model="org/tiny@main", model_config=None, max_steps=6, validation_period=6)
    options += ["--set", "checkpoint_storage.save_trial_latest=2"]

    def start(folder):
        """Start or resume the run with the branch at this folder."""
        monkeypatch.setattr(hub, "commits", {})  # as in a process of its own
        put(tmp_path / "hub", "org/tiny", "main", folder)
        return run(tiny_config, output, *options)

    with monkeypatch.context() as patch:
        stop_after(patch, 3)
        assert start(tiny) == 143
    assert start(moved) == 0

    before, after = list_checkpoints(output / "checkpoints")
    configs = [path / "pretrained" / "config.json" for _, path in (before, after)]
    assert configs[0].read_text() == configs[1].read_text()


def test_the_master_keeps_the_commits_and_no_login(monkeypatch):
    stored = {}

    def call(method, path, json=None):
        stored.update(json or {})
        return stored

    monkeypatch.setattr(master, "call", call)
    task = SimpleNamespace(trial=SimpleNamespace(trial_id=7))
    monkeypatch.setattr(master, "task", lambda: task)
    monkeypatch.setattr(hub, "commits", {"models/org/tiny@main": "0" * 40})
    master.keep_resolved({"data": {"text": "https://me:planted@example.org/a"}})
    assert stored["metadata"]["data"] == {"text": "https://***@example.org/a"}
    assert master.kept_commits() == hub.commits


def test_a_finished_run_is_finished(finished, copied, capsys):
    for name in ("step-²", "step-", "step-1a", "step-٣"):  # no steps: passed over
        (copied / "checkpoints" / name).mkdir()
    path = copied / "metrics.json"
    before = path.read_bytes()
    written = path.stat().st_mtime_ns
    assert run(finished / "tiny.yaml", copied) == 0
    shown = capsys.readouterr().err
    assert "resumed at step 12 of 12 from " in shown
    assert "the run is complete" in shown
    assert path.read_bytes() == before
    assert path.stat().st_mtime_ns == written  # nor written anew

    # One with other scores is of another run.
    other = json.loads(before)
    other["best"]["f1"] = 0.5
    write_own(copied, {"metrics.json": json.dumps(other)})
    assert run(finished / "tiny.yaml", copied) == 0
    assert json.loads(path.read_text())["best"] == json.loads(before)["best"]


def test_never_starts_over_and_deletes_nothing(finished, copied):
    before = {path.name for path in copied.iterdir()} - {".lock"}
    assert run(finished / "tiny.yaml", copied, "--resume", "never", *settings(max_steps=4)) == 0
    assert {path.name for path in (copied / "previous-1").iterdir()} == before
    assert steps_of(copied) == [4]


def test_a_checkpoint_by_its_path(finished, copied, tmp_path):
    _, middle = list_checkpoints(copied / "checkpoints")[1]
    assert run(finished / "tiny.yaml", tmp_path / "other", "--resume", middle) == 0
    assert differences(finished / "out", tmp_path / "other") == []


@pytest.fixture
def refused(finished, copied, capsys):
    """`refused(problem, *options)`: such a start is refused with it, and changes no file."""

    def contents():
        return {path: path.read_bytes() for path in copied.rglob("*") if path.is_file()}

    def check(problem, *options):
        before = contents()
        assert problem in refusal(capsys, finished / "tiny.yaml", copied, *options)
        assert contents() == before

    return check


def test_another_run_is_refused_and_the_difference_named(finished, copied, refused):
    refused("base_learning_rate: was 0.001 in", *settings(base_learning_rate=0.5))
    shape = {**TINY["hyperparameters"]["model_config"], "num_hidden_layers": 3}
    refused("model_config: was", *settings(model_config=shape))
    refused("data.max_train_examples: was 60 in", "--set", "data.max_train_examples=59")

    questions = copied.with_name("mine.json")
    questions.write_text(json.dumps(load_world("validation")))
    changed = f"data.train: is not what it was in {newest(copied)}; set it back"
    refused(changed, "--set", f"data.train={questions}")

    free = settings(checkpoint_period=5, max_tokens_per_forward=300)
    assert run(finished / "tiny.yaml", copied, *free) == 0


def test_what_is_no_checkpoint_is_refused(copied, refused):
    missing = copied / "checkpoints" / "step-00000099"
    refused("not a complete checkpoint", "--resume", missing)
    older = copied / "checkpoints" / "step-00000006"
    refused(
        f"--resume {older}: {copied} goes on from step-00000012; give another", "--resume", older
    )
    with claim_folder(copied):
        refused("another run is writing there")


def test_a_checkpoint_of_another_make_is_refused(copied, refused):
    checkpoint = newest(copied)
    state = torch.load(checkpoint / "state_dict.pth", weights_only=True)
    state["models_state_dict"][0].popitem()
    torch.save(state, checkpoint / "state_dict.pth")
    rewrite(checkpoint)
    refused("does not fit this model")

    rewrite(checkpoint, format=99)
    refused("checkpoint format 99")


@pytest.mark.parametrize("name", PICKLES)
def test_a_pickle_with_a_foreign_class_is_refused(name, copied, refused, tmp_path):
    plant(newest(copied), name, tmp_path / "pwned")
    rewrite(newest(copied))
    if name == "workload_sequencer.pkl":  # it is read in the place of the other
        refused("trial_state.pkl: not the tensors and numbers")
    else:
        refused(f"{name}: not the")
    assert not (tmp_path / "pwned").exists()


def test_determined_loads_the_trial(finished):
    """`load_trial_from_checkpoint_path` fails on torch >= 2.6 without the allowed globals."""
    path = newest(finished / "out")
    trial = load_trial_from_checkpoint_path(str(path), trial_class=model_def.SquadTrial)
    saved = read_weights(path / "state_dict.pth")
    assert of_value(dict(trial.model.state_dict())) == of_value(dict(saved))
