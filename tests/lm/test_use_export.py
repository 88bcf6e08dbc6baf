"""Exported folders: the trained model's logits in plain transformers."""

import json
import os
import shutil
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM

from detalbert.corpus.vocabulary import train_byte_bpe
from detalbert.engine.trial import StepTrial
from detalbert.errors import UserError
from detalbert.training.manifest import find_fault, write_manifest
from detalbert.training.parts import TensorSaver
from detalbert.training.workload import is_sharded
from lm.hparams import Layout
from lm.inference.saved import export_language_model, open_saved
from lm.layout import make_mesh
from lm.model import build_causal_model
from tests.lm.ranks import CPU, SEED, start, tiny, whole_parameters
from tests.older import ids_and_outputs

pytestmark = pytest.mark.usefixtures("fork")


class Model(NamedTuple):
    """A tiny model, and the layout that it is saved from."""

    family: str
    layout: Layout
    keys: dict[str, Any] = {}


BOTH = Layout(shard=2, tensor=2)
# Rotary positions at another rate than the usual one.
SLOW = {"rope_type": "linear", "rope_theta": 500.0, "factor": 2.0}
PARTIAL = {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5}
MODELS = {
    "llama": Model("llama", BOTH, {"tie_word_embeddings": True, "rope_parameters": SLOW}),
    "gpt_neox": Model("gpt_neox", BOTH, {"rope_parameters": PARTIAL}),
    # Its head is the embedding; it has no tensor-parallel plan.
    "gpt2": Model("gpt2", Layout(replicate=2, shard=2)),
}
IDS = torch.arange(60)[None] * 37 % 257


def save(folder):
    """A checkpoint of each model, as train.py fills the folder; rank 0 returns all weights."""
    tokenizer = train_byte_bpe(["the ship"], 257)
    rank = dist.get_rank()
    weights = {}
    for name, (family, layout, keys) in MODELS.items():
        model = build_causal_model(tiny(family, **keys), make_mesh(layout, CPU), SEED).model
        optimizer = torch.optim.AdamW(model.parameters())
        checkpoint = folder / name
        checkpoint.mkdir(exist_ok=True)
        TensorSaver().save(checkpoint, model, optimizer)()
        if rank == 0:
            trial = SimpleNamespace(model=model, data=SimpleNamespace(tokenizer=tokenizer))
            StepTrial.on_checkpoint_write_end(trial, str(checkpoint))
            (checkpoint / "metadata.json").write_text('{"steps_completed": 9}')
            write_manifest(checkpoint, {"steps": 9})
        weights[name] = whole_parameters(model)
    return weights if rank == 0 else {}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The folder of the checkpoints, and the weights of each."""
    folder = tmp_path_factory.mktemp("saved")
    return folder, start(save, 4, folder, folder)[0]


def load_with_transformers(folder):
    """Every weight is there, and every one is used."""
    model, loading_info = AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation="eager", output_loading_info=True
    )
    assert not any(loading_info.values()), loading_info
    return model


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_plain_transformers_gives_the_trained_models_logits(name, saved, tmp_path):
    folder, weights = saved
    family, _, keys = MODELS[name]
    trained = AutoModelForCausalLM.from_config(tiny(family, **keys), attn_implementation="eager")
    trained.load_state_dict(weights[name], strict=False)
    trained.tie_weights()
    logits = trained.eval()(IDS).logits

    exported = tmp_path / "out"
    export_language_model(open_saved(folder / name), exported)
    assert torch.equal(load_with_transformers(exported)(IDS).logits, logits)

    assert float(logits.abs().max()) > 1e-2


@pytest.mark.soak
@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_transformers_4_gives_the_same_logits(name, saved, tmp_path):
    source = open_saved(saved[0] / name)
    exported = tmp_path / "out"
    export_language_model(source, exported)
    text = "the ship, the ships"

    ids, logits, *_ = ids_and_outputs("AutoModelForCausalLM", exported, text, tmp_path / "4.pt")

    assert ids[0].tolist() == source.tokenizer(text)["input_ids"]
    model = load_with_transformers(exported)
    torch.testing.assert_close(model(ids).logits, logits, rtol=0, atol=1e-5)


def test_what_lies_in_the_folder(saved, tmp_path):
    source = open_saved(saved[0] / "llama")
    out = tmp_path / "out"
    export_language_model(source, out, "mit")

    config = json.loads((out / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["dtype"] == "float32"
    # transformers 4 reads these names.
    assert config["rope_theta"] == 500.0
    assert config["rope_scaling"] == {"rope_type": "linear", "factor": 2.0}

    exported = open_saved(out)
    assert exported.steps == 9
    assert exported.hparams.max_seq_length == source.hparams.max_seq_length

    text = "The <|endoftext|> ship"
    assert exported.tokenizer(text)["input_ids"] == source.tokenizer(text)["input_ids"]

    card = (out / "README.md").read_text()
    assert card.startswith("---\nlicense: mit\n")
    assert "trained for 9 optimizer steps" in card


def refused(problem, function, *args):
    with pytest.raises(UserError, match=problem):
        function(*args)


def shorten(path):
    os.truncate(path, path.stat().st_size - 9)


def test_an_export_that_cannot_be_is_refused(saved, tmp_path):
    source = open_saved(saved[0] / "llama")
    not_empty = tmp_path / "there"
    not_empty.mkdir()
    (not_empty / "file").write_text("")
    refused("there: it exists; give a new folder", export_language_model, source, not_empty)

    for layers in (1, 3):
        other = source._replace(config=tiny("llama", num_hidden_layers=layers))
        refused("does not fit: .*model.layers", export_language_model, other, tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


def test_exported_folders_that_are_refused(saved, tmp_path):
    out = tmp_path / "out"
    export_language_model(open_saved(saved[0] / "llama"), out)
    refused("is a model folder already", export_language_model, open_saved(out), tmp_path / "again")


def test_checkpoints_that_are_refused(saved, tmp_path):
    checkpoint = shutil.copytree(saved[0] / "llama", tmp_path / "whole")
    assert is_sharded(checkpoint)
    assert find_fault(checkpoint) is None

    shorten(next(checkpoint.glob("shard-00002*")))
    refused(
        "not a complete checkpoint .shard-00002.*safetensors is not as it was",
        open_saved,
        checkpoint,
    )

    (checkpoint / "manifest.json").unlink()
    source = open_saved(checkpoint)
    refused(
        "whole: does not fit: .*file not fully covered",
        export_language_model,
        source,
        tmp_path / "new",
    )
    assert [path.name for path in tmp_path.iterdir()] == ["whole"]
