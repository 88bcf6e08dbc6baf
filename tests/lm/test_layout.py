"""Layouts that are chosen, and mistakes that end a task before token shards are written."""

import copy

import pytest
from transformers import AutoModelForCausalLM

from detalbert.errors import UserError
from lm import model as lm_model
from lm.data import LmText
from lm.hparams import Layout, parse_lm_hparams
from lm.layout import choose_layout
from tests.conftest import TINY_LM
from tests.lm.ranks import tiny


def model_type(name, **keys):
    return {"model_config": {"model_type": name, **keys}}


def named_tokenizer(name):
    return {"data": {"vocab_size": None, "tokenizer": name}}


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"slots": 4, "layout": {"shard": 3}}, "layout: replicate 1 x shard 3 x tensor 1 is 3 pr"),
        ({"slots": 8, "layout": {"tensor": 8}}, "tensor: 8 does not divide .*attention_heads 4"),
        (
            {"slots": 2, "layout": {"tensor": 2}, **model_type("gpt2")},
            "gpt2 has no tensor-para",
        ),
        ({"slots": 8, "machine": 1, "layout": {"tensor": 2}}, "2 peers do not fit inside"),
        ({"model_config": {"hidden_size": 64}}, "model_config.model_type: missing; use gpt2"),
        (model_type("lama"), "model_type: 'lama' is no model of"),
        ({"model": "/none", "model_config": None}, "hyperparameters.model: .*does not load"),
        (model_type("phi"), "model: phi reads packed rows wrongly"),
        (model_type("llama", num_key_value_heads=3), "num_attention_heads: 32 is no multiple of 3"),
        (model_type("llama", head_dim=3), "head_dim: 3 is no multiple of 2"),
        (model_type("llama", head_dim=100_000), "head_dim: 100000; give a number from 1 to 1,024"),
        (model_type("llama", layers=2), "config.layers: unknown key"),
        ({"max_seq_length": 64}, "the model has 32 positions"),
        (named_tokenizer("/no"), "data.tokenizer: '/no' does not load"),
        (named_tokenizer("embedded/albert-tiny"), "has no eos_token"),
    ],
)
def test_a_mistake_ends_there(changes, problem, monkeypatch):
    config = copy.deepcopy(TINY_LM)
    config["data"].update(changes.pop("data", {}))
    slots = changes.pop("slots", 1)
    monkeypatch.setenv("WORLD_SIZE", str(slots))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(changes.pop("machine", slots)))
    monkeypatch.setattr("lm.data.write_shards", None)
    config["hyperparameters"].update(changes)
    with pytest.raises(UserError, match=problem) as error:
        LmText.load(config["data"], parse_lm_hparams(config["hyperparameters"]))
    assert "\n" not in str(error.value)


LLAMA = tiny("llama", num_attention_heads=16, num_key_value_heads=8, hidden_size=128)
LAYOUTS = [  # what is set, slots, slots of a machine, and the layout that is chosen
    ({}, 1, 1, Layout()),
    ({}, 8, 8, Layout(shard=8)),
    ({}, 64, 8, Layout(replicate=8, shard=8)),
    ({}, 6, 4, Layout(shard=6)),  # machines of 4 that do not divide 6
    ({"tensor": 4}, 64, 8, Layout(replicate=8, shard=2, tensor=4)),
    ({"replicate": 1}, 64, 8, Layout(shard=64)),
    ({"replicate": 2, "tensor": 2}, 64, 8, Layout(replicate=2, shard=16, tensor=2)),
    ({"shard": 16}, 64, 8, Layout(replicate=4, shard=16)),
]


def test_what_is_left_open_is_chosen():
    for layout, slots, slots_per_machine, expected in LAYOUTS:
        chosen = choose_layout(
            layout or "auto", LLAMA, slots=slots, slots_per_machine=slots_per_machine
        )
        assert chosen == expected


def test_a_plan_that_splits_the_embedding_is_taken_without_that():
    """As transformers 5.17 has it for Llama; the embedding is whole on each rank, like its head."""
    config = tiny("llama", tie_word_embeddings=True)
    linear_layers = dict(config.base_model_tp_plan)
    config.base_model_tp_plan = {"embed_tokens": "embedding_rowwise", **linear_layers}
    plan = lm_model._plan(AutoModelForCausalLM.from_config(config))
    assert set(plan) == {f"model.{name}" for name in linear_layers}
