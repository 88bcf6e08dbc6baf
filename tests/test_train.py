"""End to end, through the entry point: files of a run, real SQuAD, bad input."""

import contextlib
import copy
import fcntl
import json
import os
import pty
import re
import shutil
import struct
import subprocess
import termios
from pathlib import Path
from typing import Any

import pytest
import yaml

import predict
import train
from detalbert.redact import masked
from detalbert.squad import world
from detalbert.squad.metrics import score
from detalbert.squad.sources import open_source, read_examples
from tests.conftest import ROOT, settings
from tests.fakes import secrets
from tests.fakes.no_models import truncated_model
from tests.fakes.runs import metrics, newest, only_error, refusal, run


def independent_scores(validation: str, output_dir: Path, limit: Any = None) -> dict[str, float]:
    examples = read_examples(open_source(validation, "validation", output_dir), limit=limit)
    predictions = json.loads((output_dir / "predictions.json").read_text())
    null_odds = json.loads((output_dir / "null_odds.json").read_text())
    assert predictions.keys() == null_odds.keys() == {example.id for example in examples}
    return score(examples, predictions, null_odds)


def test_a_run_writes_its_files(finished):
    out, shown = finished / "out", (finished / "shown").read_text()
    for part in ("60 questions", "steps         12", "warm-up", "learning rate", "parameters"):
        assert part in shown
    assert "step 3/12" in shown and "windows/s" in shown  # lines: not a terminal
    written = metrics(out)
    assert written["last"]["steps"] == 12 and written["throughput"]["training_windows"] == 96
    best = written["best"]
    scores = independent_scores("generated", out, limit=40)
    assert scores == {key: best[key] for key in scores}
    assert {"steps", "loss", "best_exact_thresh", "best_f1_thresh", "NoAns_exact"} <= best.keys()
    assert list((out / "tensorboard").glob("events*"))
    resolved = yaml.safe_load((out / "config.yaml").read_text())
    assert resolved["hyperparameters"]["max_steps"] == 12
    assert resolved["hyperparameters"]["weight_decay"] == 0.0  # defaults are spelled out


def test_no_file_of_a_run_has_a_secret(finished, tmp_path):
    assert secrets.found_in([finished]) == {str(finished / "tiny.yaml")}
    words = ["--model", str(finished / "out"), "--export", str(tmp_path / "exported")]
    assert predict.main(words) == 0
    assert secrets.found_in([tmp_path]) == set()
    kept = json.loads((newest(finished / "out") / "load_data.json").read_text())
    written = yaml.safe_load((finished / "out" / "config.yaml").read_text())
    for config in (kept["experiment_config"], written):  # masked, not left out
        assert config["environment"] == masked(secrets.PLANTED["environment"])


def test_a_terminal_gets_a_progress_bar(tiny_config, tmp_path, python):
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
    assert "100%|" in bar and "12/12 [" in bar and "loss=" in bar and "windows/s=" in bar


def test_real_squad_from_scratch(shared, tmp_path, capsys, fork):
    """The issue's own command, but for fewer steps and questions: seconds instead of minutes."""
    values = {"train": f"{shared}/squad/train.json", "validation": f"{shared}/squad/dev.json"}
    values |= {"tokenizer": f"{shared}/albert-tokenizer", "cache_dir": tmp_path / "cache"}
    values |= {"max_train_examples": 300, "max_validation_examples": 100}
    data = [word for item in values.items() for word in ("--set", f"data.{item[0]}={item[1]}")]
    assert run(ROOT / "configs/local.yaml", tmp_path / "real", *data, *settings(max_steps=6)) == 0
    assert "from random weights" in capsys.readouterr().err
    best = metrics(tmp_path / "real")["best"]
    scores = independent_scores(values["validation"], tmp_path / "real", limit=100)
    assert scores == {key: best[key] for key in scores}


# What is set, and what is said of it.
BAD = """
data.train=nowhere.json | nowhere.json: no such file
data.validation=null | data.validation: set 'validation' (a file or data set) or
hyperparameters.model_config={hidden_sizes: 4} | unknown key; did you mean 'hidden_size'?
hyperparameters.model_config={model_type: alberto} | model_config.model_type: 'alberto' is no model
hyperparameters.model_config={hidden_size: 30, num_attention_heads: 4} | 30 is no multiple
hyperparameters.model_config.max_position_embeddings=100 | hyperparameters.max_seq_length: 192
searcher.metric=f2 | searcher.metric: validation gives no 'f2'
hyperparameters.lr_scale={type: log} | hyperparameters.lr_scale.base: missing; set it
hyperparameters.max_seq_length=70 | lower doc_stride
"""


@pytest.mark.parametrize("case", BAD.strip().splitlines())
def test_bad_config(case, tiny_config, tmp_path, capsys):
    change, message = case.split(" | ")
    # In this process, for speed; `test_bad_input_in_processes` goes through a real one.
    assert message in refusal(capsys, tiny_config, tmp_path / "out", "--set", change)
    assert not list(tmp_path.glob("out/checkpoints/*")) and not list(tmp_path.glob("out/metrics*"))


def test_bad_files(tiny_config, tmp_path, capsys):
    out = tmp_path / "out"
    empty = shutil.copytree(ROOT / "embedded" / "albert-tiny", tmp_path / "model")
    (empty / "model.safetensors").unlink()
    without = settings(model_config=None, model=str(empty))
    assert "hyperparameters.model: " in refusal(capsys, tiny_config, out, *without)
    short = settings(model_config=None, model=str(truncated_model(tmp_path / "short")))
    assert "short' does not load: Error while" in refusal(capsys, tiny_config, out, *short)
    (tmp_path / "blocked").write_text("")
    blocked = tmp_path / "blocked" / "out"
    assert "blocked/out: cannot write there" in refusal(capsys, tiny_config, blocked)


def test_bad_input_in_processes(tiny_config, tmp_path, train):
    """One clear line on standard error, status 2."""
    done = train("--config", tmp_path / "no.yaml", "--output-dir", tmp_path / "out")
    assert done.returncode == 2 and "no.yaml: cannot read it" in only_error(done.stderr)
    words = ["--config", tiny_config, "--output-dir", tmp_path / "out"]
    done = train(*words, *settings(global_batch_size=9), processes=2)
    assert done.returncode != 0  # torchrun's own status is 1; each worker exits with 2
    said = done.stderr.count("train.py: error: hyperparameters.global_batch_size: 9")
    assert 1 <= said <= 2  # each rank says it, if torchrun leaves it the time


@pytest.mark.parametrize("status, several", [(0, True), (2, False), (2, True)])
def test_only_a_rank_that_failed_skips_the_interpreter_s_end(status, several, monkeypatch):
    skipped: list[int] = []
    monkeypatch.setattr("train.signal.signal", lambda *_: None)
    monkeypatch.setattr("train.os._exit", skipped.append)
    monkeypatch.setattr("train.torch.distributed.is_initialized", lambda: several)
    with pytest.raises(SystemExit) as end:
        train.leave(status)
    assert end.value.code == status and skipped == [status] * (several and status > 0)


def wrong_answers(document: dict[str, Any]) -> dict[str, Any]:
    """The same questions with the answers of a paragraph handed on to the next question."""
    document = copy.deepcopy(document)
    for paragraph in (p for article in document["data"] for p in article["paragraphs"]):
        questions = paragraph["qas"]
        given = [(question["answers"], question["is_impossible"]) for question in questions]
        for question, other in zip(questions, given[1:] + given[:1], strict=True):
            question["answers"], question["is_impossible"] = other
    return document


@pytest.mark.soak
def test_the_default_learns_and_wrong_answers_do_not(tmp_path, train):
    """What `make train` runs reaches its scores; with the answers mixed up it is far from them."""
    cache = ["--set", f"data.cache_dir={tmp_path}/cache"]
    every_core = {"LOKY_MAX_CPU_COUNT": str(os.cpu_count())}  # no bits are compared
    right = train("--output-dir", tmp_path / "right", *cache, **every_core)
    assert right.returncode == 0, right.stderr
    best = metrics(tmp_path / "right")["best"]
    assert best["exact"] >= 90 and best["f1"] >= 90, best
    assert best["HasAns_f1"] >= 85 and best["NoAns_exact"] >= 85, best

    mixed = tmp_path / "mixed.json"
    mixed.write_text(json.dumps(wrong_answers(world.generate("train"))))
    few = ["--set", f"data.train={mixed}", *settings(max_steps=400)]
    wrong = train("--output-dir", tmp_path / "wrong", *cache, *few, **every_core)
    assert wrong.returncode == 0, wrong.stderr
    line = r"INFO: validation at step 400:.* exact (\S+)"
    exact = [float(re.findall(line, done.stderr)[0]) for done in (right, wrong)]
    assert exact[0] > 65 and exact[1] < 45
