"""End to end, through the entry point: files of a run, real SQuAD, two processes, bad input."""

import contextlib
import copy
import fcntl
import json
import os
import pty
import shutil
import struct
import subprocess
import termios
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import predict
from detalbert.engine.safe_load import read_weights
from detalbert.settings.experiment import masked
from detalbert.squad import world
from detalbert.squad.metrics import score
from detalbert.squad.sources import open_source, read_examples
from tests.conftest import NO_DROPOUT, ROOT, Train, settings
from tests.fakes import secrets
from tests.fakes.no_models import truncated_model
from tests.fakes.runs import change, newest, only_error, refusal


def independent_scores(validation: str, output_dir: Path, limit: Any = None) -> dict[str, float]:
    examples, _ = read_examples(open_source(validation, "validation", output_dir), limit=limit)
    predictions = json.loads((output_dir / "predictions.json").read_text())
    null_odds = json.loads((output_dir / "null_odds.json").read_text())
    assert predictions.keys() == null_odds.keys() == {example.id for example in examples}
    return score(examples, predictions, null_odds)


def test_a_run_writes_its_files(finished: Path) -> None:
    out, shown = finished / "out", (finished / "shown").read_text()
    for part in ("60 questions", "steps         12", "warm-up", "learning rate", "parameters"):
        assert part in shown
    assert "step 3/12" in shown and "examples/s" in shown  # lines: not a terminal
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["last"]["steps"] == 12 and metrics["throughput"]["training_windows"] == 96
    best = metrics["best"]
    scores = independent_scores("generated", out, limit=40)
    assert scores == {key: best[key] for key in scores}
    assert {"steps", "loss", "best_exact_thresh", "best_f1_thresh", "NoAns_exact"} <= best.keys()
    assert list((out / "tensorboard").glob("events*"))
    resolved = yaml.safe_load((out / "config.yaml").read_text())
    assert resolved["hyperparameters"]["max_steps"] == 12
    assert resolved["hyperparameters"]["weight_decay"] == 0.0  # defaults are spelled out


def test_no_file_of_a_run_has_a_secret(finished: Path, tmp_path: Path) -> None:
    assert secrets.found_in([finished]) == {str(finished / "tiny.yaml")}
    words = ["--model", str(finished / "out"), "--export", str(tmp_path / "exported")]
    assert predict.main(words) == 0
    assert secrets.found_in([tmp_path]) == set()
    kept = json.loads((newest(finished / "out") / "load_data.json").read_text())
    written = yaml.safe_load((finished / "out" / "config.yaml").read_text())
    for config in (kept["experiment_config"], written):  # masked, not left out
        assert config["environment"] == masked(secrets.PLANTED["environment"])


def test_a_terminal_gets_a_progress_bar(tiny_config: Path, tmp_path: Path, python: str) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 140, 0, 0))
    command = [python, str(ROOT / "train.py"), "--config", str(tiny_config)]
    command += ["--output-dir", str(tmp_path / "out")]
    with subprocess.Popen(command, cwd=ROOT, stderr=theirs, stdout=subprocess.DEVNULL) as process:
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # EIO: the other end is closed
            while chunk := os.read(ours, 1 << 16):
                shown += chunk
    os.close(ours)
    assert process.returncode == 0
    bar = [line for line in shown.decode().replace("\r", "\n").splitlines() if "|" in line][-1]
    assert "100%|" in bar and "12/12 [" in bar and "loss=" in bar and "examples/s=" in bar


def test_max_steps_wins_and_epochs_count(tiny_config: Path, tmp_path: Path, train: Train) -> None:
    half = settings(max_steps=None, epochs=0.5)
    shown = train("--config", tiny_config, "--output-dir", tmp_path / "a", *half).stderr
    windows = int(shown.split(" windows")[0].split()[-1])
    assert f"steps         {-(-windows // 16)} (" in shown


def test_real_squad_from_scratch(shared: Path, tmp_path: Path, train: Train) -> None:
    """The issue's own command, but for fewer steps and questions: seconds instead of minutes."""
    done = train(
        "--config", "configs/local.yaml", "--output-dir", tmp_path / "real",
        "--set", f"data.train={shared}/squad/train.json",
        "--set", f"data.validation={shared}/squad/dev.json",
        "--set", f"data.tokenizer={shared}/albert-tokenizer",
        "--set", f"data.cache_dir={tmp_path}/cache",
        "--set", "data.max_validation_examples=200",
        *settings(max_steps=6),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "from random weights" in done.stderr
    best = json.loads((tmp_path / "real" / "metrics.json").read_text())["best"]
    scores = independent_scores(f"{shared}/squad/dev.json", tmp_path / "real", limit=200)
    assert scores == {key: best[key] for key in scores}


def test_two_processes_train_and_score_as_one(
    tiny_config: Path, tmp_path: Path, train: Train
) -> None:
    change(tiny_config, max_steps=50, validation_period=25, model_config=NO_DROPOUT)
    common = ["--config", tiny_config, "--output-dir"]
    one = train(*common, tmp_path / "one")
    two = train(*common, tmp_path / "two", processes=2)
    assert one.returncode == two.returncode == 0, two.stderr
    alone, pair = (read_weights(newest(tmp_path / n) / "state_dict.pth") for n in ("one", "two"))
    for name, value in alone.items():
        torch.testing.assert_close(pair[name], value, rtol=1e-4, atol=1e-5)
    scores = [json.loads((tmp_path / n / "metrics.json").read_text()) for n in ("one", "two")]
    for name, value in scores[0]["last"].items():
        if name in ("loss", "best_exact_thresh", "best_f1_thresh"):  # logits themselves
            value = pytest.approx(value, rel=1e-3, abs=1e-4)
        assert scores[1]["last"][name] == value
    predictions = [(tmp_path / n / "predictions.json").read_text() for n in ("one", "two")]
    assert predictions[0] == predictions[1]


BAD = {
    "missing file": (["data.train=nowhere.json"], "nowhere.json: no such file"),
    "unknown key": (["hyperparameters.lr=1"], "hyperparameters.lr: unknown key"),
    "wrong type": (["hyperparameters.seed=x"], "hyperparameters.seed: expected a whole number"),
    "missing key": (["hyperparameters.model_config=null"], "hyperparameters.model: set exactly"),
    "no data": (["data.validation=null"], "data.validation: missing"),
    "model key": (
        ["hyperparameters.model_config={hidden_sizes: 4}"],
        "hyperparameters.model_config.hidden_sizes: unknown key; did you mean 'hidden_size'?",
    ),
    "model type": (
        ["hyperparameters.model_config={model_type: alberto}"],
        "hyperparameters.model_config.model_type: 'alberto' is no model",
    ),
    "impossible model": (
        ["hyperparameters.model_config={hidden_size: 30, num_attention_heads: 4}"],
        "hyperparameters.model_config.hidden_size: 30 is no multiple",
    ),
    "positions": (
        ["hyperparameters.model_config.max_position_embeddings=100"],
        "hyperparameters.max_seq_length: 192",
    ),
    "metric": (["searcher.metric=f2"], "searcher.metric: validation gives no 'f2'"),
    "search": (
        ["hyperparameters.lr_scale={type: double, minval: 0, maxval: 1}"],
        "hyperparameters.lr_scale: a search range",
    ),
    "windows": (
        [f"hyperparameters.{x}" for x in ("max_seq_length=64", "max_query_length=30")]
        + ["hyperparameters.doc_stride=60"],
        "doc_stride",
    ),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_config(kind: str, tiny_config: Path, tmp_path: Path, capsys: Any) -> None:
    changes, message = BAD[kind]
    out, words = tmp_path / "out", [word for change in changes for word in ("--set", change)]
    # In this process, for speed; `test_bad_input_in_a_process` goes through a real one.
    assert message in refusal(capsys, tiny_config, out, *words)
    assert not list(out.glob("checkpoints/*")) and not (out / "metrics.json").exists()


def test_bad_input_in_a_process(tmp_path: Path, train: Train) -> None:
    """One clear line on standard error, status 2."""
    done = train("--config", tmp_path / "no.yaml", "--output-dir", tmp_path / "out")
    assert done.returncode == 2 and "no.yaml: cannot read it" in only_error(done.stderr)


def test_bad_files(tiny_config: Path, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "out"
    (tmp_path / "list.yaml").write_text("- 1")
    assert "not an experiment config" in refusal(capsys, tmp_path / "list.yaml", out)
    empty = tmp_path / "model"
    shutil.copytree(ROOT / "embedded" / "albert-tiny", empty)
    (empty / "model.safetensors").unlink()
    without = settings(model_config=None, model=str(empty))
    assert "hyperparameters.model: " in refusal(capsys, tiny_config, out, *without)
    short = settings(model_config=None, model=str(truncated_model(tmp_path / "short")))
    assert "short' does not load: Error while" in refusal(capsys, tiny_config, out, *short)
    (tmp_path / "blocked").write_text("")
    blocked = tmp_path / "blocked" / "out"
    assert "blocked/out: cannot write there" in refusal(capsys, tiny_config, blocked)


def test_a_batch_that_two_processes_cannot_share(
    tiny_config: Path, tmp_path: Path, train: Train
) -> None:
    words = ["--config", tiny_config, "--output-dir", tmp_path / "out"]
    done = train(*words, *settings(global_batch_size=9), processes=2)
    assert done.returncode != 0  # torchrun's own status is 1; each worker exits with 2
    said = done.stderr.count("ERROR: train.py: error: hyperparameters.global_batch_size: 9")
    assert 1 <= said <= 2  # each rank says it, if torchrun leaves it the time


def wrong_answers(document: dict[str, Any]) -> dict[str, Any]:
    """The same questions with the answers of a paragraph handed on to the next question."""
    document = copy.deepcopy(document)
    for article in document["data"]:
        for paragraph in article["paragraphs"]:
            questions = paragraph["qas"]
            keys = ("answers", "is_impossible")
            given = [{key: question[key] for key in keys} for question in questions]
            for question, other in zip(questions, given[1:] + given[:1], strict=True):
                question.update(copy.deepcopy(other))
    return document


def exact_of(stderr: str, step: int) -> float:
    line = next(x for x in stderr.splitlines() if x.startswith(f"INFO: validation at step {step}:"))
    return float(line.split("exact ")[1].split()[0])


@pytest.mark.soak
def test_the_default_learns_and_wrong_answers_do_not(tmp_path: Path, train: Train) -> None:
    """What `make train` runs reaches its scores; with the answers mixed up it is far from them."""
    cache = ["--set", f"data.cache_dir={tmp_path}/cache"]
    every_core = {"LOKY_MAX_CPU_COUNT": str(os.cpu_count())}  # no bits are compared
    right = train("--output-dir", tmp_path / "right", *cache, **every_core)
    assert right.returncode == 0, right.stderr
    best = json.loads((tmp_path / "right" / "metrics.json").read_text())["best"]
    assert best["exact"] >= 90 and best["f1"] >= 90, best
    assert best["HasAns_f1"] >= 85 and best["NoAns_exact"] >= 85, best

    mixed = tmp_path / "mixed.json"
    mixed.write_text(json.dumps(wrong_answers(world.generate("train"))))
    few = ["--set", f"data.train={mixed}", *settings(max_steps=400)]
    wrong = train("--output-dir", tmp_path / "wrong", *cache, *few, **every_core)
    assert wrong.returncode == 0, wrong.stderr
    assert exact_of(right.stderr, 400) > 65
    assert exact_of(wrong.stderr, 400) < 45
