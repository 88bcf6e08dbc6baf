"""`predict.py --export` of a run of train.py: the model as transformers has it, and what is
refused."""

import json
import math
import shutil

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

import predict
from detalbert.corpus.vocabulary import train_byte_bpe
from lm.data import LmText
from lm.hparams import parse_lm_hparams
from lm.inference.saved import open_saved
from tests.fakes.checkpoints import CheckpointMaster, Stored
from tests.fakes.no_models import refused
from tests.fakes.runs import metrics, newest
from tests.lm.ranks import documents_sums, tiny

LENGTH = 32  # of the run's windows
UUID = "aaaaaaaa-1111-2222-3333-444444444444"


def test_an_export_scores_as_the_validation_of_its_run(lm_run, tmp_path):
    folder = tmp_path / "exported"
    assert predict.main(["--model", str(lm_run), "--export", str(folder)]) == 0
    config = yaml.safe_load((lm_run / "config.yaml").read_text())
    data = LmText.load(config["data"], parse_lm_hparams(config["hyperparameters"]))
    windows = [data.validation[number] for number in range(len(data.validation))]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    text_bytes = 0
    for tokens, lengths in windows:
        for segment in tokens.split(lengths.tolist()):
            text = tokenizer.decode(segment[1:], skip_special_tokens=True)
            text_bytes += len(text.encode())

    with torch.no_grad():
        library = AutoModelForCausalLM.from_pretrained(folder)
        loss, correct, targets = documents_sums(library, windows).tolist()

    best = metrics(lm_run)["best"]
    assert best["loss"] == pytest.approx(loss / targets, rel=1e-5)
    assert best["accuracy"] == pytest.approx(100 * correct / targets)
    bits_per_byte = loss / math.log(2) / text_bytes
    assert best["bits_per_byte"] == pytest.approx(bits_per_byte, rel=1e-3)


def test_a_checkpoint_of_a_cluster_is_exported_as_one_of_a_folder(lm_run, tmp_path, monkeypatch):
    """The same weights and settings as from the folder of the run."""
    checkpoint = tmp_path / "storage" / UUID
    shutil.copytree(newest(lm_run), checkpoint)
    (checkpoint / "manifest.json").unlink()
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
    exports = {"here": str(lm_run), "there": "trial:7"}
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


@pytest.mark.parametrize("parent", ["elsewhere", "checkpoints"])
def test_a_moved_checkpoint_has_what_its_manifest_names(parent, lm_run, tmp_path):
    """In its run it has the run's data. Elsewhere a config.yaml two folders up is of another."""
    checkpoint = newest(lm_run)
    moved = shutil.copytree(checkpoint, tmp_path / parent / checkpoint.name)
    if parent == "elsewhere":
        (tmp_path / "config.yaml").write_text("hyperparameters: {max_seq_length: 64}")
    scores = metrics(lm_run)["last"]
    steps = scores.pop("steps")

    in_its_run, alone = open_saved(checkpoint), open_saved(moved)

    assert in_its_run.data["documents"] == str(lm_run.parent / "text.jsonl")
    assert alone.data == {}
    for saved in (in_its_run, alone):
        assert (saved.steps, saved.scores) == (steps, scores)
        assert saved.hparams.max_seq_length == LENGTH


def test_what_is_refused(lm_run, tmp_path, capsys):
    command = ["--export", tmp_path / "out"]
    refused(["--model", lm_run, "--threshold", "1", *command], "--threshold: ", capsys)
    damaged = shutil.copytree(newest(lm_run), tmp_path / "damaged")
    (damaged / "pretrained" / "config.json").write_text("{}")
    (damaged / "manifest.json").unlink()
    refused(["--model", damaged, *command], "does not load as a language model", capsys)
    assert not (tmp_path / "out").exists()


def test_a_model_of_others_has_windows_of_1024_tokens_at_most(tmp_path):
    tiny("llama", max_position_embeddings=4096).save_pretrained(tmp_path)
    train_byte_bpe(["the ship sank"] * 5, 300).save_pretrained(tmp_path)
    assert open_saved(tmp_path).hparams.max_seq_length == 1024
