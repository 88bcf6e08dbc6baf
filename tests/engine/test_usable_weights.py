"""Weights that are not finite, or so large that products overflow, are refused at any loading."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import predict
from detalbert.engine.models import build_span_model
from detalbert.errors import UserError
from detalbert.hub import STATE_DICT
from detalbert.settings.hparams import HParams
from detalbert.squad.encoding import named_tokenizer
from detalbert.training.manifest import read_manifest, write_manifest
from pretrain.encoders import build_encoder
from pretrain.hparams import PretrainHParams
from tests.fakes.no_models import refused
from tests.fakes.runs import newest, refusal

BAD = [torch.nan, torch.inf, -torch.inf, 1e38, -1e38]
SAID = "is not finite, or too large for float32; give other weights"
SHIPPED = Path("embedded/albert-tiny")
ASKED = ["--question", "What?", "--context", "The Zanto was loaded with pottery."]


def poison(weights, value, name=""):
    """Set one number of the weights, by default of the last of the names that are matrices."""
    name = name or max(key for key, weight in weights.items() if weight.ndim == 2)
    weights[name].view(-1)[-1] = value


def poisoned(folder, value, source=SHIPPED):
    """A copy of a model folder without sums, as of another make."""
    shutil.copytree(source, folder)
    (folder / "sums.json").unlink(missing_ok=True)
    weights = load_file(folder / "model.safetensors")
    poison(weights, value)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize("value", BAD)
def test_a_model_folder_is_refused_by_every_training(value, tmp_path):
    name, own = str(poisoned(tmp_path / "model", value)), named_tokenizer(str(SHIPPED))
    keys = {"max_seq_length": 64, "seed": 0}
    ways = [
        lambda: build_span_model(HParams(model=name, **keys), own),
        lambda: build_encoder(PretrainHParams(model=name, **keys), own),
    ]
    for way in ways:
        with pytest.raises(UserError, match=f"^{name}: its weight '.*' {SAID}$"):
            way()


def test_an_answer_from_them_is_refused(local_run, tmp_path, capsys):
    """Of a checkpoint, an exported folder; and `--export` writes nothing."""
    assert predict.main(["--model", str(local_run.path), "--export", str(tmp_path / "good")]) == 0
    capsys.readouterr()
    folder = poisoned(tmp_path / "bad", torch.nan, tmp_path / "good")
    checkpoint = Path(shutil.copytree(local_run.checkpoint, tmp_path / "checkpoint"))
    (checkpoint / "manifest.json").unlink()  # as on a cluster
    state = torch.load(checkpoint / STATE_DICT, weights_only=True)
    poison(state["models_state_dict"][0], 1e38)
    torch.save(state, checkpoint / STATE_DICT)
    out = tmp_path / "out"
    data = ["--data", local_run.questions, "--output-dir", out]
    for model in (folder, checkpoint):
        for words in (ASKED, [*ASKED, "--json"], data, ["--export", out]):
            refused(["--model", model, *words], SAID, capsys)
    assert not out.exists()


def test_a_restart_from_them_is_refused(finished, tmp_path, capsys):
    out = Path(shutil.copytree(finished / "out", tmp_path / "out"))
    checkpoint = newest(out)
    state = torch.load(checkpoint / STATE_DICT, weights_only=True)
    poison(state["models_state_dict"][0], torch.nan)
    torch.save(state, checkpoint / STATE_DICT)
    facts = read_manifest(checkpoint)
    (checkpoint / "manifest.json").unlink()
    write_manifest(checkpoint, {key: facts[key] for key in facts if key not in ("files", "sha256")})
    assert SAID in refusal(capsys, finished / "tiny.yaml", out)
