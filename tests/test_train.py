"""End to end, through the entry point: files of a run, real SQuAD, bad input."""

import copy
import itertools
import json
import os
import re
import shutil

import pytest
import yaml

import predict
from detalbert.redact import masked
from detalbert.squad.metrics import score
from detalbert.squad.questions import read_examples
from detalbert.squad.sources import open_source
from tests.conftest import ROOT, settings
from tests.fakes import secrets
from tests.fakes.no_models import truncated_model
from tests.fakes.questions import load_world
from tests.fakes.runs import metrics, newest, only_error, refusal, run


def independent_scores(validation, output_dir, limit=None):
    """The scores of a run's predictions, from the questions and the files alone."""
    source = open_source(validation, "validation", output_dir)
    examples = list(itertools.islice(read_examples(source), limit))
    predictions = json.loads((output_dir / "predictions.json").read_text())
    null_odds = json.loads((output_dir / "null_odds.json").read_text())
    assert predictions.keys() == null_odds.keys() == {example.id for example in examples}
    return score(examples, predictions, null_odds)


def test_a_run_writes_its_files(finished):
    out = finished / "out"
    shown = (finished / "shown").read_text()
    for text in ("60 questions on ", "steps         12", "warm-up", "learning rate", "parameters"):
        assert text in shown
    assert "step 3/12" in shown  # lines: not a terminal
    assert "windows/s" in shown

    assert metrics(out)["last"]["steps"] == 12
    assert metrics(out)["throughput"]["training_windows"] == 96
    best = metrics(out)["best"]
    scores = independent_scores("generated", out, limit=40)
    assert scores == {key: best[key] for key in scores}
    assert {"steps", "loss", "best_exact_thresh", "best_f1_thresh", "NoAns_exact"} <= best.keys()
    assert list((out / "tensorboard").glob("events*"))

    hparams = yaml.safe_load((out / "config.yaml").read_text())["hyperparameters"]
    assert hparams["max_steps"] == 12
    assert hparams["weight_decay"] == 0.0  # defaults are spelled out


def test_no_file_of_a_run_has_a_secret(finished, tmp_path):
    out = finished / "out"
    assert secrets.found_in([finished]) == {str(finished / "tiny.yaml")}
    assert predict.main(["--model", str(out), "--export", str(tmp_path / "exported")]) == 0
    assert secrets.found_in([tmp_path]) == set()

    # They are masked, not left out.
    environment = masked(secrets.PLANTED["environment"])
    saved = json.loads((newest(out) / "load_data.json").read_text())
    assert saved["experiment_config"]["environment"] == environment
    config = yaml.safe_load((out / "config.yaml").read_text())
    assert config["environment"] == environment


def test_real_squad_from_scratch(golden_dir, tmp_path, capsys, fork):
    """The issue's own command, but for fewer steps and questions: seconds instead of minutes."""
    output = tmp_path / "real"
    dev = f"{golden_dir}/dev.json"
    options = settings(max_steps=6)
    for value in (
        f"data.train={golden_dir}/train.json",
        f"data.validation={dev}",
        f"data.tokenizer={golden_dir}/albert-tokenizer",
        f"data.cache_dir={tmp_path}/cache",
        "data.max_train_examples=300",
        "data.max_validation_examples=100",
    ):
        options += ["--set", value]

    assert run(ROOT / "configs/local.yaml", output, *options) == 0

    assert "from random weights" in capsys.readouterr().err
    best = metrics(output)["best"]
    scores = independent_scores(dev, output, limit=100)
    assert scores == {key: best[key] for key in scores}


# What is set, and what is said of it.
BAD = """
data.train=nowhere.json | nowhere.json: no such file
data.validation=null | data.validation: set exactly one of 'validation' (a file or data set)
hyperparameters.model_config={hidden_sizes: 4} | unknown key; did you mean 'hidden_size'?
hyperparameters.model_config={model_type: alberto} | model_config.model_type: 'alberto' is no model
hyperparameters.model_config={hidden_size: 30, num_hidden_layers: 2} | 30 is no multiple
hyperparameters.model_config.max_position_embeddings=100 | hyperparameters.max_seq_length: 192
searcher.metric=f2 | searcher.metric: validation gives no 'f2'
hyperparameters.lr_scale={type: log} | hyperparameters.lr_scale.base: missing
hyperparameters.max_seq_length=70 | lower doc_stride
"""


@pytest.mark.parametrize("case", BAD.strip().splitlines())
def test_bad_config(case, tiny_config, tmp_path, capsys):
    change, problem = case.split(" | ")
    # In this process, for speed; `test_bad_input_in_processes` goes through a real one.
    assert problem in refusal(capsys, tiny_config, tmp_path / "out", "--set", change)
    assert not list(tmp_path.glob("out/checkpoints/*"))
    assert not list(tmp_path.glob("out/metrics*"))


def test_bad_files(tiny_config, tmp_path, capsys):
    out = tmp_path / "out"
    without_weights = shutil.copytree(ROOT / "embedded" / "albert-tiny", tmp_path / "model")
    (without_weights / "model.safetensors").unlink()
    options = settings(model_config=None, model=str(without_weights))
    assert "hyperparameters.model: " in refusal(capsys, tiny_config, out, *options)

    options = settings(model_config=None, model=str(truncated_model(tmp_path / "short")))
    assert "short' does not load: Error while" in refusal(capsys, tiny_config, out, *options)

    (tmp_path / "blocked").write_text("")
    blocked = tmp_path / "blocked" / "out"
    assert "blocked/out: cannot write there" in refusal(capsys, tiny_config, blocked)


def test_bad_input_in_processes(tiny_config, tmp_path, train):
    """One clear line on standard error, status 2."""
    out = tmp_path / "out"
    ended = train("--config", tmp_path / "no.yaml", "--output-dir", out)
    assert ended.returncode == 2
    assert "no.yaml: no such file" in only_error(ended.stderr)

    arguments = ["--config", tiny_config, "--output-dir", out]
    ended = train(*arguments, *settings(global_batch_size=9), processes=2)
    assert ended.returncode != 0  # torchrun's own status is 1; each worker exits with 2
    lines = ended.stderr.count("train.py: error: hyperparameters.global_batch_size: 9")
    assert 1 <= lines <= 2  # each rank says it, if torchrun leaves it the time


def wrong_answers(document):
    """The same questions, each with the answers of the next one of its paragraph."""
    document = copy.deepcopy(document)
    for article in document["data"]:
        for paragraph in article["paragraphs"]:
            questions = paragraph["qas"]
            shifted = copy.deepcopy(questions[1:] + questions[:1])
            for question, following in zip(questions, shifted, strict=True):
                question["answers"] = following["answers"]
                question["is_impossible"] = following["is_impossible"]
    return document


@pytest.mark.soak
def test_the_default_learns_and_wrong_answers_do_not(tmp_path, train):
    """What `make train` runs reaches its scores; with the answers mixed up it is far from them."""
    every_core = str(os.cpu_count())  # no bits are compared

    def start(output, *options):
        """Train a run; its exact matches at step 400."""
        ended = train(
            "--output-dir",
            output,
            "--set",
            f"data.cache_dir={tmp_path}/cache",
            *options,
            LOKY_MAX_CPU_COUNT=every_core,
        )
        assert ended.returncode == 0, ended.stderr
        exact = re.findall(r"INFO: validation at step 400:.* exact (\S+)", ended.stderr)[0]
        return float(exact)

    right = start(tmp_path / "right")
    best = metrics(tmp_path / "right")["best"]
    assert best["exact"] >= 90, best
    assert best["f1"] >= 90, best
    assert best["HasAns_f1"] >= 85, best
    assert best["NoAns_exact"] >= 85, best

    mixed = tmp_path / "mixed.json"
    mixed.write_text(json.dumps(wrong_answers(load_world("train"))))
    wrong = start(tmp_path / "wrong", "--set", f"data.train={mixed}", *settings(max_steps=400))
    assert right > 65
    assert wrong < 45
