"""`predict.py --export` of a run of train.py: the model as transformers has it, and what is
refused."""

import json
import math
import shutil
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

import predict
from lm.data import LmText
from lm.hparams import parse_lm_hparams
from tests.fakes.checkpoints import CheckpointMaster, Stored
from tests.fakes.no_models import refused
from tests.fakes.runs import metrics, newest

LENGTH = 32  # of the run's windows
UUID = "aaaaaaaa-1111-2222-3333-444444444444"


class Scored(NamedTuple):
    """What plain transformers computes of documents end to end, window by window."""

    losses: list[float]  # of each target
    correct: int
    text_bytes: int


@torch.no_grad()
def score_with_transformers(folder: Path, shards: list[np.ndarray]) -> Scored:
    """Cut each shard's tokens into full windows; read each document's part of a window alone."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    library = AutoModelForCausalLM.from_pretrained(folder)
    losses = []
    correct = text_bytes = 0
    for shard in shards:
        is_end = shard == tokenizer.eos_token_id
        documents = np.cumsum(is_end) - is_end  # of each token
        for begin in range(0, len(shard) - LENGTH, LENGTH):
            place = slice(begin, begin + LENGTH + 1)
            window = torch.from_numpy(shard[place])
            _, lengths = np.unique(documents[place], return_counts=True)
            for segment in window.split(lengths.tolist()):
                targets = segment[1:]
                logits = library(segment[None]).logits[0, :-1]
                loss = torch.nn.functional.cross_entropy(logits, targets, reduction="none")
                losses += loss.tolist()
                correct += int((logits.argmax(-1) == targets).sum())
                text = tokenizer.decode(targets, skip_special_tokens=True)
                text_bytes += len(text.encode())
    return Scored(losses, correct, text_bytes)


def test_an_export_scores_as_the_validation_of_its_run(lm_run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "exported"
    assert predict.main(["--model", str(lm_run), "--export", str(folder)]) == 0
    config = yaml.safe_load((lm_run / "config.yaml").read_text())
    data = LmText.load(config["data"], parse_lm_hparams(config["hyperparameters"]))
    shards = data.validation.shards
    tokens = [
        shards.columns(number)["tokens"].astype(np.int64) for number in range(len(shards.shards))
    ]

    scored = score_with_transformers(folder, tokens)

    best = metrics(lm_run)["best"]
    targets = len(scored.losses)
    total = math.fsum(scored.losses)
    assert best["loss"] == pytest.approx(total / targets, rel=1e-5)
    assert best["accuracy"] == pytest.approx(100 * scored.correct / targets)
    bits_per_byte = total / math.log(2) / scored.text_bytes
    assert best["bits_per_byte"] == pytest.approx(bits_per_byte, rel=1e-3)


@pytest.mark.parametrize("place", ["elsewhere", "on a cluster"])
def test_a_checkpoint_is_exported_wherever_it_is(
    place: str, lm_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same weights and settings as from the folder of the run."""
    checkpoint = tmp_path / "storage" / UUID
    shutil.copytree(newest(lm_run), checkpoint)
    model = str(checkpoint)
    if place == "on a cluster":
        (checkpoint / "manifest.json").unlink()
        model = "trial:7"
    config = yaml.safe_load((lm_run / "config.yaml").read_text())
    scores = metrics(lm_run)["best"]
    stored = Stored(
        uuid=UUID,
        folder=checkpoint,
        f1=0.0,
        ended=1,
        steps=scores["steps"],
        scores=scores,
        config={"data": config["data"]},
        hparams=config["hyperparameters"],
    )
    storage = {"type": "shared_fs", "host_path": str(tmp_path / "storage")}
    exports = {"here": str(lm_run), "there": model}
    with CheckpointMaster([stored], storage) as master:
        master.log_in(monkeypatch, tmp_path)
        for name, source in exports.items():
            assert predict.main(["--model", source, "--export", str(tmp_path / name)]) == 0

    here, there = (tmp_path / name for name in exports)
    for file in ("model.safetensors", "config.json", "tokenizer.json"):
        assert (here / file).read_bytes() == (there / file).read_bytes()
    settings = json.loads((there / "language_model.json").read_text())
    assert settings["hyperparameters"]["max_seq_length"] == LENGTH
    assert settings["steps"] == scores["steps"]


def test_what_is_refused(lm_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["--export", tmp_path / "out"]
    refused(["--model", lm_run, "--threshold", "1", *command], "--threshold: ", capsys)
    damaged = shutil.copytree(newest(lm_run), tmp_path / "damaged")
    (damaged / "pretrained" / "config.json").write_text("{}")
    refused(["--model", damaged, *command], "config.json is not as it was written", capsys)
    (damaged / "manifest.json").unlink()
    refused(["--model", damaged, *command], "does not load as a language model", capsys)
    assert not (tmp_path / "out").exists()
