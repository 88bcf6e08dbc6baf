"""Exported folders: the trained model's logits in plain transformers, and little memory."""

import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM, AutoTokenizer

import predict
from detalbert.corpus.learn_tokenizer import train_byte_bpe
from detalbert.engine.trial import StepTrial
from detalbert.errors import UserError
from detalbert.training.manifest import find_fault, write_manifest
from detalbert.training.parts import TensorSaver
from detalbert.training.table import is_sharded
from lm.hparams import Layout
from lm.inference import export as export_lm
from lm.inference.export import export
from lm.inference.load import load_model, open_saved
from lm.layout import make_mesh
from lm.model import build_causal_model
from tests.lm.ranks import CPU, start, tiny, whole

pytestmark = pytest.mark.usefixtures("fork")

BOTH, HALVES = Layout(shard=2, tensor=2), Layout(replicate=2, shard=2)
# Of 27 MB, so that what is held shows.
LARGE = {"hidden_size": 512, "num_hidden_layers": 2, "intermediate_size": 1536}
LARGE |= {"vocab_size": 1000, "num_attention_heads": 8, "num_key_value_heads": 4}
MODELS: dict[str, tuple[str, Layout, dict[str, Any]]] = {
    "llama": ("llama", BOTH, {"tie_word_embeddings": True}),
    "gpt_neox": ("gpt_neox", BOTH, {}),
    "gpt2": ("gpt2", HALVES, {}),  # its head is the embedding; it has no tensor-parallel plan
    "large": ("llama", BOTH, LARGE),
}
IDS = torch.arange(60)[None] * 37 % 257


def save(folder: Path) -> dict[str, dict[str, torch.Tensor]]:
    """A checkpoint of each model, as train.py fills the folder; all weights, whole."""
    tokenizer, weights = train_byte_bpe(["the ship"], 257), {}
    for name, (family, layout, keys) in MODELS.items():
        model = build_causal_model(tiny(family, **keys), make_mesh(layout, CPU), 7).model
        optimizer = torch.optim.AdamW(model.parameters())
        (folder / name).mkdir(exist_ok=True)
        TensorSaver().save(folder / name, model, optimizer)()
        if dist.get_rank() == 0:
            trial: Any = SimpleNamespace(model=model, data=SimpleNamespace(tokenizer=tokenizer))
            StepTrial.on_checkpoint_write_end(trial, str(folder / name))
            (folder / name / "metadata.json").write_text('{"steps_completed": 9}')
            write_manifest(folder / name, {"steps": 9})
        if name != "large":
            weights[name] = {key: whole(p) for key, p in model.named_parameters()}
    return weights if dist.get_rank() == 0 else {}


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("saved")
    return folder, start(save, 4, folder, folder)[0]


@pytest.mark.parametrize("name", [name for name in MODELS if name != "large"])
def test_plain_transformers_gives_the_trained_models_logits(
    name, saved, tmp_path, capsys, monkeypatch
):
    folder, weights = saved
    family, _, keys = MODELS[name]
    trained = AutoModelForCausalLM.from_config(tiny(family, **keys), attn_implementation="eager")
    trained.load_state_dict(weights[name], strict=False)
    trained.tie_weights()
    words = ["--model", folder / name, "--export", tmp_path / "out", "--license", "mit"]
    assert predict.main([str(word) for word in words]) == 0
    assert f"the model is in {tmp_path / 'out'}" in capsys.readouterr().out
    source = open_saved(folder / name)
    in_parts = tmp_path / "parts"
    monkeypatch.setattr(export_lm, "FILE_BYTES", 100_000)
    export(source, in_parts)
    assert len(list(in_parts.glob("*.safetensors"))) > 2
    with torch.no_grad():
        expected = trained.eval()(IDS).logits
        for exported in (tmp_path / "out", in_parts):
            library, info = AutoModelForCausalLM.from_pretrained(
                exported, attn_implementation="eager", output_loading_info=True
            )
            assert not any(info.values()), info
            assert torch.equal(library(IDS).logits, expected)
        model = load_model(source)
        ours = model(IDS).logits  # another attention: sdpa
    assert len({p.data_ptr() for p in model.state_dict().values()}) == len(weights[name])
    assert float((ours - expected).abs().max()) < 1e-5 < 1e-2 < float(expected.abs().max())


def test_what_lies_in_the_folder(saved, tmp_path):
    source, out = open_saved(saved[0] / "llama"), tmp_path / "out"
    export(source, out, "mit")
    config = json.loads((out / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"] and config["dtype"] == "float32"
    again = open_saved(out)
    assert again.steps == 9 and again.hparams.max_seq_length == source.hparams.max_seq_length
    text, tokenizer = "The <|endoftext|> ship", AutoTokenizer.from_pretrained(out)
    assert tokenizer(text)["input_ids"] == source.tokenizer(text)["input_ids"]
    card = (out / "README.md").read_text()
    assert card.startswith("---\nlicense: mit\n") and "trained for 9 optimizer steps" in card
    assert all(path.stat().st_mode & 0o044 == 0o044 for path in out.iterdir())


def memory(name: str) -> int:
    """Bytes by a name of /proc/self/status."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split(f"{name}:")[1].split()[0])


def peak(folder: Path, out: Path) -> tuple[int, int]:
    """Bytes that an export takes beyond what the process had, and those of the model's files."""
    source = open_saved(folder)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = memory("VmRSS")
    export(source, out)
    return memory("VmHWM") - before, sum(p.stat().st_size for p in out.glob("*.safetensors"))


def test_a_model_is_not_held_twice(saved, tmp_path):
    taken, size = start(peak, 1, tmp_path, saved[0] / "large", tmp_path / "out")[0]
    assert size > 25e6 and taken < 1.5 * size, (taken, size)


def test_what_is_refused(saved, tmp_path):
    whole, there, out = (tmp_path / name for name in ("whole", "there", "out"))
    source = open_saved(Path(shutil.copytree(saved[0] / "llama", whole)))
    assert is_sharded(whole) and find_fault(whole) is None
    there.mkdir()
    (there / "file").write_text("")
    export(source, out)
    wider = source._replace(config=tiny("llama", num_hidden_layers=3))
    refused("there: it exists; give a new folder", export, source, there)
    refused("is a model folder already", lambda: export(open_saved(out), tmp_path / "more"))
    refused("does not fit: .*model.layers.2", export, wider, tmp_path / "new")
    shorten(out / "model.safetensors")
    cut = "model.safetensors: not as it was written; copy it again"
    refused(cut, lambda: load_model(open_saved(out)))
    (out / "sums.json").unlink()
    incomplete = "does not load as a language model: .*incomplete"
    refused(incomplete, lambda: load_model(open_saved(out)))
    shorten(next(whole.glob("__1*.distcp")))
    refused("not a complete checkpoint .__1_0.distcp is not as it was", open_saved, whole)
    (whole / "manifest.json").unlink()
    shorten(whole / "tensors.json")
    source = open_saved(whole)
    refused("tensors.json: not loaded: ", load_model, source)
    refused("tensors.json: not loaded: ", export, source, tmp_path / "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "there", "whole"]


def refused(said: str, what: Any, *args: Any) -> None:
    with pytest.raises(UserError, match=said):
        what(*args)


def shorten(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 9)
