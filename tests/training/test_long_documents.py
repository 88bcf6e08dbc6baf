"""Long documents: nearly no window holds an answer, and a share of the others is trained on."""

import json
import math
import shutil

import numpy as np
import pytest
import yaml

from data import SquadData
from detalbert.settings.hparams import parse_hparams
from tests.fakes.questions import shipped
from tests.fakes.runs import change, newest, refusal, steps_of
from tests.same_bits import differences
from tests.training.test_resume import OTHER_ENCODERS, SHAPE

PARAGRAPHS = 5  # of the generated world in a document


@pytest.fixture
def long_config(tiny_config, tmp_path):
    """The tiny config on two documents, in windows of 64 tokens."""
    rows = []
    articles = shipped("train", 2 * PARAGRAPHS)["data"]
    for first in range(0, len(articles), PARAGRAPHS):
        paragraphs = [article["paragraphs"][0] for article in articles[first : first + PARAGRAPHS]]
        begin = 0
        context = "\n".join(paragraph["context"] for paragraph in paragraphs)
        for paragraph in paragraphs:
            for question in paragraph["qas"][:2]:
                answers = []
                for answer in question["answers"]:
                    answers.append({**answer, "answer_start": begin + answer["answer_start"]})
                rows.append({**question, "context": context, "answers": answers})
            begin += len(paragraph["context"]) + 1
    # One is longer than a window, so that no window holds it.
    rows[0]["answers"] = [{"text": rows[0]["context"][:600], "answer_start": 0}]
    rows[0]["is_impossible"] = False
    (tmp_path / "long.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = yaml.safe_load(tiny_config.read_text())
    del config["data"]["max_train_examples"]
    config["data"]["train"] = str(tmp_path / "long.jsonl")
    tiny_config.write_text(yaml.safe_dump(config))
    return change(
        tiny_config, max_seq_length=64, doc_stride=16, max_query_length=24, max_steps=None
    )


def load(config, share):
    values = yaml.safe_load(config.read_text())
    hparams = parse_hparams(values["hyperparameters"])
    return SquadData.load({**values["data"], "no_answer_windows": share}, hparams)


@pytest.mark.parametrize("share", [1.0, 0.3, 0.0])
def test_a_share_of_the_windows_without_the_answer_makes_an_epoch(share, long_config):
    data = load(long_config, share)
    windows = data.train.windows
    row = windows.pack(np.arange(len(windows)))
    has_answer = row["start_positions"] != row["null_positions"]
    answerable = [bool(example.answers) for example in data.train.examples]
    misses = np.array(answerable)[windows.example_index] & ~has_answer
    assert misses.sum() > 30
    assert (~misses & ~has_answer).sum() > 30  # of questions without an answer
    assert misses[windows.example_index == 0].all()
    expected = np.where(np.array(answerable)[windows.example_index], has_answer, -1)
    assert np.array_equal(windows.holds_answer, expected)

    summary = data.summary()
    assert summary.windows == len(windows) - round((1 - share) * misses.sum())
    line = summary.lines["train"]
    assert f"{len(windows):,} windows ({has_answer.sum()} with an answer), " in line
    assert ("; an epoch leaves " in line) == (share < 1)


KINDS = {"packed": (None, 1), "padded": ("deberta", 2)}


@pytest.mark.parametrize(("encoder", "processes"), KINDS.values(), ids=KINDS)
def test_a_cut_run_on_a_share_of_the_windows_ends_in_the_uncut_bits(
    encoder, processes, long_config, tmp_path, train
):
    """In the second epoch, whose windows are others."""
    config = yaml.safe_load(long_config.read_text())
    config["data"]["no_answer_windows"] = 0.1
    config["hyperparameters"] |= {
        "global_batch_size": 32,
        "epochs": 1.5,
        "checkpoint_period": 2,
        "validation_period": 99,
    }
    config["hyperparameters"] |= {"max_tokens_per_forward": 1024}
    if encoder is not None:
        config["hyperparameters"]["model_config"] = SHAPE | OTHER_ENCODERS[encoder]
    config["checkpoint_storage"] = {"save_trial_latest": 99}
    long_config.write_text(yaml.safe_dump(config))

    def start(output):
        ended = train("--config", long_config, "--output-dir", output, processes=processes)
        assert ended.returncode == 0, ended.stderr
        return ended.stderr

    uncut = tmp_path / "uncut"
    start(uncut)
    last = steps_of(uncut)[-1]
    assert last == math.ceil(1.5 * load(long_config, 0.1).summary().windows / 32)
    cut = last // 4 * 2
    resumed = shutil.copytree(uncut, tmp_path / "resumed")
    while steps_of(resumed)[-1] > cut:
        shutil.rmtree(newest(resumed))
    assert f"resumed at step {cut} of {last}" in start(resumed)
    assert differences(uncut, resumed) == []


def test_a_share_that_is_none_is_refused(long_config, tmp_path, capsys):
    for share in ("1.5", "-0.1", "true"):
        options = ["--set", f"data.no_answer_windows={share}"]
        line = refusal(capsys, long_config, tmp_path / "out", *options)
        assert line.startswith("train.py: error: data.no_answer_windows: ")
