"""The model: its config, its initial weights, weights that are read, precision, checkpointing."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from detalbert.engine.attention import PACKED_CAUSAL
from detalbert.errors import UserError
from lm import initial
from lm.hparams import Layout, LmHParams
from lm.layout import make_mesh
from lm.model import build_causal_model, causal_config, empty_model
from tests.conftest import ROOT
from tests.lm import ranks
from tests.lm.ranks import CPU, SHAPES, Case, tiny, whole_parameters

TOKENIZER = AutoTokenizer.from_pretrained(str(ROOT / "embedded/albert-tiny"))
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"


def tensors_of(model: PreTrainedModel) -> dict[str, Tensor]:
    return dict(model.named_parameters()) | dict(model.named_buffers())


def draw_all(model: PreTrainedModel, rules: initial.Rules, seed: int) -> dict[str, Tensor]:
    """Draw the values of every parameter and buffer of an empty model."""
    values = {}
    for name, tensor in tensors_of(model).items():
        values[name] = initial.draw(name, torch.empty(tensor.shape), rules, seed)
    return values


@pytest.mark.parametrize("family", SHAPES)
def test_weights_are_drawn_by_the_rule_of_the_library(family):
    config = tiny(family, vocab_size=4096, pad_token_id=3)
    model = empty_model(config)
    library = AutoModelForCausalLM.from_config(config)
    buffers = dict(library.named_buffers())
    expected_tensors = tensors_of(library)

    ours = draw_all(model, initial.record_rules(model), seed=1)

    assert ours.keys() == expected_tensors.keys()
    for name, expected in expected_tensors.items():
        values = ours[name]
        assert values.shape == expected.shape
        if len(expected.unique()) == 1 or name in buffers:
            assert torch.equal(values, expected), name  # 0, 1, frequencies
        else:  # normal: the same mean and deviation, and GPT-2's smaller ones where it joins
            spread = 5 / expected.numel() ** 0.5
            assert abs(values.std() / expected.std() - 1) < spread, name
            assert abs(values.mean()) < expected.std() * spread, name


def test_what_is_drawn_is_a_function_of_seed_and_name():
    model = empty_model(tiny("llama"))
    rules = initial.record_rules(model)
    values = draw_all(model, rules, seed=1)
    again = draw_all(model, rules, seed=1)
    of_another_seed = draw_all(model, rules, seed=2)
    for name, tensor in values.items():
        assert torch.equal(tensor, again[name])
        if tensor.ndim > 1:
            assert not torch.equal(tensor, of_another_seed[name])

    first_layer = values["model.layers.0.self_attn.q_proj.weight"]
    second_layer = values["model.layers.1.self_attn.q_proj.weight"]
    assert not torch.equal(first_layer, second_layer)


def test_the_padding_tokens_row_is_drawn_and_learns():
    model = empty_model(tiny("llama", pad_token_id=3))
    embedding = draw_all(model, initial.record_rules(model), seed=1)["model.embed_tokens.weight"]
    assert embedding[3].any()
    assert model.get_input_embeddings().padding_idx is None
    assert model.config._attn_implementation == PACKED_CAUSAL  # and no other reads rows

    model.model.extra = torch.nn.Parameter(torch.empty(3, device="meta"))
    with pytest.raises(UserError, match=r"no rule for the initial values of 'model\.extra'"):
        initial.record_rules(model)


def test_no_model_is_one_line():
    with pytest.raises(UserError, match="hyperparameters.model: 'no/such' does not load"):
        read(Path("no/such"))
    with pytest.raises(UserError, match="hyperparameters.model: cannot be built"):
        empty_model(AutoConfig.for_model("vit"))


def test_a_model_from_a_config_drops_nothing_out_unless_it_says_so():
    config = causal_config(LmHParams(model_config={"model_type": "gpt2"}), TOKENIZER)
    assert config.attn_pdrop == config.resid_pdrop == config.embd_pdrop == 0
    assert config.vocab_size == len(TOKENIZER)

    keys = {"model_type": "gpt2", "attn_pdrop": 0.2}
    config = causal_config(LmHParams(model_config=keys), TOKENIZER)
    assert config.attn_pdrop == 0.2
    assert config.embd_pdrop == 0


FOLDERS = {"gpt2": {}, "gpt_neox": {}, "llama": {"tie_word_embeddings": True}}


def save(family: str, folder: Path) -> dict[str, Tensor]:
    """Save a model of transformers in several files; its parameters."""
    model = AutoModelForCausalLM.from_config(tiny(family, **FOLDERS[family]))
    model.save_pretrained(folder, max_shard_size="60KB")
    assert (folder / INDEX).is_file()
    return whole_parameters(model)


def load(layout: Layout, folder: Path, saved: dict[str, dict[str, Tensor]]) -> None:
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


@pytest.mark.parametrize("layout", [Layout(), Layout(shard=2, tensor=2)], ids=str)
def test_weights_are_read_into_the_shards(layout, tmp_path, fork):
    families = set(FOLDERS)
    if layout.tensor > 1:
        families.remove("gpt2")  # it has no tensor-parallel plan
    saved = {family: save(family, tmp_path / family) for family in families}
    ranks.start(load, layout.slots, tmp_path, layout, tmp_path, saved)


def read(folder: Path, **keys: Any) -> PreTrainedModel:
    """A tiny GPT-2 with the weights of a folder."""
    model = empty_model(tiny("gpt2", **keys))
    rules = initial.record_rules(model)
    model.to_empty(device="cpu").tie_weights()
    initial.load_initial(model, rules, str(folder))
    return model


def test_weights_of_the_body_alone_are_read(tmp_path):
    parameters = save("gpt2", tmp_path / "whole")
    body = {name.removeprefix("transformer."): tensor for name, tensor in parameters.items()}
    save_file(body, tmp_path / WEIGHTS)  # as OpenAI's own GPT-2 is on the hub

    loaded = dict(read(tmp_path).named_parameters())

    for name, parameter in parameters.items():
        assert torch.equal(loaded[name], parameter)


FAULTS = {
    "missing": "lack 'transformer.h.1.ln_1.bias'",
    "shape": r"'transformer.wte.weight' of .* is \[257, 64\], and its config says \[300, 64\]",
    "index": "that can be read: No such file",
    "outside": "'whole/.*' is outside the folder",
    "none": "has no safetensors that can be read",
    "short": "has no safetensors that can be read",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_weights_that_do_not_fit_are_refused(fault, tmp_path):
    complete = tmp_path / "whole"
    save("gpt2", complete)
    files = json.loads((complete / INDEX).read_text())["weight_map"]
    tensors = {name: load_file(complete / file)[name] for name, file in files.items()}
    weights = tmp_path / WEIGHTS
    keys = {}
    match fault:
        case "missing":
            del tensors["transformer.h.1.ln_1.bias"]
            save_file(tensors, weights)
        case "shape":
            save_file(tensors, weights)
            keys["vocab_size"] = 300
        case "short":
            save_file(tensors, weights)
            weights.write_bytes(weights.read_bytes()[:-100])
        case "index":  # names files that are not beside it
            (tmp_path / INDEX).write_text(json.dumps({"weight_map": files}))
        case "outside":
            outside = {name: f"whole/{file}" for name, file in files.items()}
            (tmp_path / INDEX).write_text(json.dumps({"weight_map": outside}))

    with pytest.raises(UserError, match=FAULTS[fault]):
        read(tmp_path, **keys)


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


def test_key_value_heads_that_do_not_divide_the_heads_are_refused():
    keys = {
        "model_type": "llama",
        "hidden_size": 32,
        "num_attention_heads": 4,
        "num_key_value_heads": 3,
    }
    hparams = LmHParams(model_config=keys, max_seq_length=32)
    with pytest.raises(
        UserError,
        match=r"^hyperparameters.model_config.num_key_value_heads: "
        "3 does not divide num_attention_hea",
    ):
        causal_config(hparams, TOKENIZER)
