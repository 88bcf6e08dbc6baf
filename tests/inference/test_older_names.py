"""Exported configs under the names of transformers 4.57: all that it reads, or a refusal."""

import json

import pytest
import torch
from transformers import AutoModelForMaskedLM

from detalbert.engine.models import config_from_keys
from detalbert.errors import UserError
from detalbert.inference.export import add_older_names
from tests.fakes.masked import make_tokenizer
from tests.older import ids_and_outputs

SHAPE = {
    "model_type": "modernbert",
    "hidden_size": 32,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "local_attention": 4,
    "initializer_range": 0.2,
}
FULL, SLIDING = "full_attention", "sliding_attention"
LINEAR = {"rope_type": "linear", "factor": 2.0, "rope_theta": 5000.0}
EXPORTED = {
    "every third": ({}, 3),
    "every second": ({"global_attn_every_n_layers": 2}, 2),
    "older names": ({"global_attn_every_n_layers": 4, "global_rope_theta": 5e3}, 4),
    "all": ({"layer_types": [FULL] * 6}, 1),
    "only the first": ({"layer_types": [FULL, *[SLIDING] * 5]}, 6),
    "by name": ({"layer_types": [FULL, SLIDING] * 3}, 2),
}
REFUSED = {
    "none is global": {"layer_types": [SLIDING] * 6},
    "another order": {"layer_types": [FULL, SLIDING, SLIDING, FULL, FULL, FULL]},
    "scaled": {"rope_parameters": {FULL: LINEAR, SLIDING: LINEAR}},
}


def save(folder, keys):
    """Save a ModernBERT of random weights as an export does; return it."""
    tokenizer = make_tokenizer("modernbert")
    torch.manual_seed(3)
    model = AutoModelForMaskedLM.from_config(config_from_keys({**SHAPE, **keys}, tokenizer))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    add_older_names(folder)
    return model.eval()


@pytest.mark.parametrize(("keys", "period"), EXPORTED.values(), ids=EXPORTED)
def test_a_modernbert_says_which_layers_are_global(keys, period, tmp_path):
    model = save(tmp_path, keys)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["global_attn_every_n_layers"] == period
    assert config["global_rope_theta"] == keys.get("global_rope_theta", 160_000.0)
    expected = [SLIDING if layer % period else FULL for layer in range(6)]
    assert model.config.layer_types == expected


@pytest.mark.parametrize("keys", REFUSED.values(), ids=REFUSED)
def test_what_transformers_4_cannot_say_is_refused(keys, tmp_path):
    with pytest.raises(UserError, match=r"--export: transformers 4\.57 would silently take other"):
        save(tmp_path, keys)


def test_layers_that_are_named_twice_are_refused():
    keys = {**SHAPE, "layer_types": [FULL] * 6, "global_attn_every_n_layers": 3}
    with pytest.raises(UserError, match=r"model_config\.global_attn_every_n_layers: layer_types"):
        config_from_keys(keys, make_tokenizer("modernbert"))


@pytest.mark.soak
@pytest.mark.parametrize("keys", [keys for keys, _ in EXPORTED.values()], ids=EXPORTED)
@torch.no_grad()
def test_transformers_4_gives_the_same_logits(keys, tmp_path):
    model = save(tmp_path, keys)
    text = "the ship was built in the harbour of a town"
    ids, logits = ids_and_outputs("AutoModelForMaskedLM", tmp_path, text, tmp_path / "4.pt")
    torch.testing.assert_close(model(ids).logits, logits, rtol=0, atol=1e-5)
    assert len(ids[0]) > 8  # more than a layer of near tokens sees
