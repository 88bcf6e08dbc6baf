"""The model: its config, its initial weights, weights that are read, precision, checkpointing."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
)

from detalbert.engine.attention import PACKED_CAUSAL
from detalbert.errors import UserError
from lm.hparams import Layout, LmHParams
from lm.layout import make_mesh
from lm.model import build_causal_model, causal_config
from tests.conftest import ROOT
from tests.lm import ranks
from tests.lm.ranks import CPU, SEED, Case, tiny, whole_parameters

TOKENIZER = AutoTokenizer.from_pretrained(str(ROOT / "embedded/albert-tiny"))
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"


def build(config, weights=None):
    """The model of a config in this process alone."""
    mesh = make_mesh(Layout(), CPU)
    return build_causal_model(config, mesh, SEED, weights=str(weights) if weights else None).model


def test_the_padding_tokens_row_is_drawn_and_learns(fork):
    """The library sets it to zero."""
    model = build(tiny("llama"))
    padded = build(tiny("llama", pad_token_id=3))
    embedding = padded.get_input_embeddings()
    assert torch.equal(embedding.weight, model.get_input_embeddings().weight)
    assert embedding.padding_idx is None
    assert padded.config.pad_token_id == 3
    assert padded.config._attn_implementation == PACKED_CAUSAL  # and no other reads rows


def test_a_model_from_a_config_drops_nothing_out_unless_it_says_so():
    config = causal_config(LmHParams(model_config={"model_type": "gpt2"}), TOKENIZER)
    assert config.attn_pdrop == config.resid_pdrop == config.embd_pdrop == 0
    assert config.vocab_size == len(TOKENIZER)


FOLDERS = {"gpt2": {}, "gpt_neox": {}, "llama": {"tie_word_embeddings": True}}


def save(family, folder):
    """Save a model of transformers in several files; its parameters."""
    model = AutoModelForCausalLM.from_config(tiny(family, **FOLDERS[family]))
    model.save_pretrained(folder, max_shard_size="60KB")
    assert (folder / INDEX).is_file()
    return whole_parameters(model)


def load(layout, folder, saved):
    """Load each family's weights on this rank of the layout; they are those that were saved."""
    mesh = make_mesh(layout, CPU)
    for family, parameters in saved.items():
        weights = str(folder / family)
        config = causal_config(LmHParams(model=weights, max_seq_length=64), range(10))
        model = build_causal_model(config, mesh, seed=0, weights=weights).model
        loaded = whole_parameters(model)
        assert loaded.keys() == parameters.keys()
        for name, parameter in parameters.items():
            assert torch.equal(loaded[name], parameter), (family, name)
        assert all(buffer.isfinite().all() for buffer in model.buffers())

    # Rank 0 alone finds a fault, and all say so.
    with pytest.raises(UserError, match="'no/such' does not load"):
        build_causal_model(tiny("llama"), mesh, seed=0, weights="no/such")


def test_weights_are_read_into_the_shards(tmp_path, fork):
    saved = {family: save(family, tmp_path / family) for family in FOLDERS}
    load(Layout(), tmp_path, saved)
    del saved["gpt2"]  # it has no tensor-parallel plan
    both = Layout(shard=2, tensor=2)
    ranks.start(load, both.slots, tmp_path, both, tmp_path, saved)


def test_weights_of_the_body_alone_are_read(tmp_path, fork):
    parameters = save("gpt2", tmp_path)
    for file in tmp_path.glob("model*"):
        file.unlink()
    body = {name.removeprefix("transformer."): tensor for name, tensor in parameters.items()}
    save_file(body, tmp_path / WEIGHTS, {"format": "pt"})  # as OpenAI's own GPT-2 is on the hub

    loaded = dict(build(tiny("gpt2"), weights=tmp_path).named_parameters())

    for name, parameter in parameters.items():
        assert torch.equal(loaded[name], parameter)


FAULTS = {
    "missing": "lack 'transformer.h.1.ln_1.bias'",
    "infinite": "its weight 'transformer.h.1.ln_1.bias' is not finite",
    "outside": r"'../model.* is outside the folder",
    "short": "does not load: Error while deserializing header",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_weights_that_do_not_fit_are_refused(fault, tmp_path, fork):
    save("gpt2", tmp_path)
    index = tmp_path / INDEX
    files = json.loads(index.read_text())["weight_map"]
    name = "transformer.h.1.ln_1.bias"
    file = tmp_path / files[name]
    tensors = load_file(file)
    match fault:
        case "missing":
            del tensors[name]
            save_file(tensors, file, {"format": "pt"})
        case "infinite":
            tensors[name][0] = torch.inf
            save_file(tensors, file, {"format": "pt"})
        case "short":
            file.write_bytes(file.read_bytes()[:-100])
        case "outside":
            outside = {name: f"../{file}" for name, file in files.items()}
            index.write_text(json.dumps({"weight_map": outside}))

    with pytest.raises(UserError, match=FAULTS[fault]) as refused:
        build(tiny("gpt2"), weights=tmp_path)
    assert "\n" not in str(refused.value)


def test_bf16_and_checkpointed_layers(tmp_path, fork):
    cases = {
        "fp32": Case("llama"),
        "bf16": Case("llama", half=True),
        "recomputed": Case("llama", half=True, recomputed=0.5),
    }
    results = ranks.start(ranks.train, 2, tmp_path, Layout(shard=2), cases)[0]

    exact = results["fp32"]
    half = results["bf16"]
    recomputed = results["recomputed"]
    for name, exact_gradient in exact.gradients.items():
        gradient = half.gradients[name]
        scale = exact_gradient.norm()
        assert gradient.dtype is half.initial[name].dtype is torch.float32
        assert torch.equal(half.initial[name], exact.initial[name])
        # Summed over the ranks in fp32: bf16 sums would be numbers of bf16.
        assert not torch.equal(gradient, gradient.bfloat16().float())
        assert 1e-5 < (gradient - exact_gradient).norm() / scale < 5e-2, name
        assert (recomputed.gradients[name] - gradient).norm() < 1e-5 * scale, name
    assert half.losses == pytest.approx(exact.losses, abs=2e-2)
    assert recomputed.losses == half.losses
