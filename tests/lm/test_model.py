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
from tests.lm.ranks import CPU, SHAPES, Case, tiny, whole

TOKENIZER = AutoTokenizer.from_pretrained(str(ROOT / "embedded/albert-tiny"))


def drawn(model: PreTrainedModel, rules: initial.Rules, seed: int) -> dict[str, Tensor]:
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    real = {name: torch.empty(tensor.shape) for name, tensor in tensors.items()}
    return {name: initial.draw(name, tensor, rules, seed) for name, tensor in real.items()}


@pytest.mark.parametrize("family", SHAPES)
def test_weights_are_drawn_by_the_rule_of_the_library(family):
    config = tiny(family, vocab_size=4096, pad_token_id=3)
    model = empty_model(config)
    ours = drawn(model, initial.record_rules(model), 1)
    library = AutoModelForCausalLM.from_config(config)
    theirs = dict(library.named_parameters()) | dict(library.named_buffers())
    assert ours.keys() == theirs.keys()
    for name, expected in theirs.items():
        mine, expected = ours[name], expected.detach()
        assert mine.shape == expected.shape
        if len(expected.unique()) == 1 or name in dict(library.named_buffers()):
            assert torch.equal(mine, expected), name  # 0, 1, frequencies
        else:  # normal: the same mean and deviation, and GPT-2's smaller ones where it joins
            spread = 5 / expected.numel() ** 0.5
            assert abs(mine.std() / expected.std() - 1) < spread, name
            assert abs(mine.mean()) < expected.std() * spread, name


def test_what_is_drawn_is_a_function_of_seed_and_name():
    model = empty_model(tiny("llama"))
    rules = initial.record_rules(model)
    first, again, other = (drawn(model, rules, seed) for seed in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not any(torch.equal(first[name], other[name]) for name in first if first[name].ndim > 1)
    q, k = (f"model.layers.{i}.self_attn.q_proj.weight" for i in (0, 1))
    assert not torch.equal(first[q], first[k])


def test_the_padding_tokens_row_is_drawn_and_learns():
    model = empty_model(tiny("llama", pad_token_id=3))
    assert drawn(model, initial.record_rules(model), 1)["model.embed_tokens.weight"][3].any()
    assert model.get_input_embeddings().padding_idx is None
    assert model.config._attn_implementation == PACKED_CAUSAL  # and no other reads rows
    model.model.extra = torch.nn.Parameter(torch.empty(3, device="meta"))
    with pytest.raises(UserError, match=r"no rule for the initial values of 'model\.extra'"):
        initial.record_rules(model)


def test_no_model_is_one_line_and_one_from_a_config_drops_nothing_out():
    with pytest.raises(UserError, match="hyperparameters.model: 'no/such' does not load"):
        read(Path("no/such"))
    with pytest.raises(UserError, match="hyperparameters.model: cannot be built"):
        empty_model(AutoConfig.for_model("vit"))
    config = causal_config(LmHParams(model_config={"model_type": "gpt2"}), TOKENIZER)
    assert config.attn_pdrop == config.resid_pdrop == config.embd_pdrop == 0
    assert config.vocab_size == len(TOKENIZER)
    keys = {"model_type": "gpt2", "attn_pdrop": 0.2}
    kept = causal_config(LmHParams(model_config=keys), TOKENIZER)
    assert kept.attn_pdrop == 0.2 and kept.embd_pdrop == 0


FOLDERS = {"gpt2": {}, "gpt_neox": {}, "llama": {"tie_word_embeddings": True}}


def save(family: str, folder: Path) -> dict[str, Tensor]:
    model = AutoModelForCausalLM.from_config(tiny(family, **FOLDERS[family]))
    model.save_pretrained(folder, max_shard_size="60KB")
    assert (folder / "model.safetensors.index.json").is_file()
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def load(layout: Layout, folder: Path, saved: dict[str, dict[str, Tensor]]) -> None:
    mesh = make_mesh(layout, CPU)
    for family, parameters in saved.items():
        weights = str(folder / family)
        config = causal_config(LmHParams(model=weights, max_seq_length=64), range(10))
        model = build_causal_model(config, mesh, 0, weights=weights).model
        loaded = {name: whole(p) for name, p in model.named_parameters()}
        assert loaded.keys() == parameters.keys()
        assert all(torch.equal(loaded[k], v) for k, v in parameters.items()), family
        assert all(buffer.isfinite().all() for buffer in model.buffers())


@pytest.mark.parametrize("layout", [Layout(), Layout(shard=2, tensor=2)], ids=str)
def test_weights_are_read_into_the_shards(layout, tmp_path, fork):
    families = [family for family in FOLDERS if layout.tensor == 1 or family != "gpt2"]
    saved = {family: save(family, tmp_path / family) for family in families}
    ranks.start(load, layout.slots, tmp_path, layout, tmp_path, saved)


def read(folder: Path, **keys: Any) -> PreTrainedModel:
    model = empty_model(tiny("gpt2", **keys))
    rules = initial.record_rules(model)
    model.to_empty(device="cpu").tie_weights()
    initial.load_initial(model, rules, str(folder))
    return model


def test_weights_of_the_body_alone_are_read(tmp_path):
    expected = save("gpt2", tmp_path / "whole")
    body = {k.removeprefix("transformer."): v for k, v in expected.items()}
    save_file(body, tmp_path / "model.safetensors")  # as OpenAI's own GPT-2 is on the hub
    ours = dict(read(tmp_path).named_parameters())
    assert all(torch.equal(ours[name], value) for name, value in expected.items())


FAULTS = {
    "missing": "lack 'transformer.h.1.ln_1.bias'",
    "shape": r"'transformer.wte.weight' of .* is \[257, 64\], and its config says \[300, 64\]",
    "index": "that can be read: No such file",
    "outside": "'whole/.*' is outside the folder",
} | dict.fromkeys(["none", "short"], "has no safetensors that can be read")


@pytest.mark.parametrize("fault", FAULTS)
def test_weights_that_do_not_fit_are_refused(fault, tmp_path):
    save("gpt2", tmp_path / "whole")
    file, index = tmp_path / "model.safetensors", tmp_path / "model.safetensors.index.json"
    placed = json.loads((tmp_path / "whole" / index.name).read_text())["weight_map"]
    tensors = {k: load_file(tmp_path / "whole" / name)[k] for k, name in placed.items()}
    if fault == "missing":
        del tensors["transformer.h.1.ln_1.bias"]
    if fault in ("missing", "shape", "short"):
        save_file(tensors, file)
    if fault == "short":
        file.write_bytes(file.read_bytes()[:-100])
    if fault in ("index", "outside"):
        where = "whole/" if fault == "outside" else ""
        away = {"weight_map": {key: f"{where}{name}" for key, name in placed.items()}}
        index.write_text(json.dumps(away))
    with pytest.raises(UserError, match=FAULTS[fault]):
        read(tmp_path, **({"vocab_size": 300} if fault == "shape" else {}))


def test_bf16_and_checkpointed_layers(tmp_path, fork):
    cases = {"fp32": Case("llama"), "bf16": Case("llama", half=True)}
    cases["both"] = cases["bf16"]._replace(recomputed=0.5)
    results = ranks.start(ranks.train, 2, tmp_path, Layout(shard=2), cases)[0]
    exact, half, both = results.values()
    for name, value in exact.gradients.items():
        assert half.gradients[name].dtype is half.initial[name].dtype is torch.float32
        assert torch.equal(half.initial[name], exact.initial[name])
        # Summed over the ranks in fp32: bf16 sums would be numbers of bf16.
        assert not torch.equal(half.gradients[name], half.gradients[name].bfloat16().float())
        assert 1e-5 < (half.gradients[name] - value).norm() / value.norm() < 5e-2, name
        assert (both.gradients[name] - half.gradients[name]).norm() < 1e-5 * value.norm(), name
    assert half.losses == pytest.approx(exact.losses, abs=2e-2) and both.losses == half.losses


def test_key_value_heads_that_do_not_divide_the_heads_are_refused():
    keys = {"model_type": "llama", "hidden_size": 32, "num_attention_heads": 4}
    hparams = LmHParams(model_config={**keys, "num_key_value_heads": 3}, max_seq_length=32)
    said = r"^hyperparameters.model_config.num_key_value_heads: 3 does not divide num_attention_hea"
    with pytest.raises(UserError, match=said):
        causal_config(hparams, TOKENIZER)
