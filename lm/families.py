"""Whether a family of models reads packed rows as documents apart, tried on a tiny copy of one."""

import copy
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig

from detalbert.engine.attention import PACKED_CAUSAL
from detalbert.errors import UserError, first_line
from lm.packed import hidden_states, pack

PROVEN = "gpt2, gpt_neox, llama or qwen2"
_TINY = {
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "head_dim": 8,
    "intermediate_size": 64,
    "vocab_size": 64,
    "max_position_embeddings": 32,
}
_TOLERANCE = 1e-4  # of the largest logit; rounding gives 1e-6, a leak more than 0.1


def check_family(config: PretrainedConfig) -> None:
    """Raise UserError unless the logits of packed rows are the library's for documents apart.

    What would be wrong without a word: attention of the model's own or over a sliding window,
    positions that come from a mask (Bloom), a head with a bias (Phi) or its own scale (Cohere).
    """
    try:
        off = _distance(tiny_config(config))
    except UserError:
        raise
    except Exception as error:  # the code of any model of the library
        raise UserError(
            f"hyperparameters.model: {config.model_type} does not read packed rows: "
            f"{first_line(error)}; use {PROVEN}"
        ) from None
    if not off <= _TOLERANCE:
        raise UserError(
            f"hyperparameters.model: {config.model_type} reads packed rows wrongly (its logits are "
            f"off by {off:.2g} of the largest); use {PROVEN}"
        )


def tiny_config(config: PretrainedConfig) -> PretrainedConfig:
    """A config of the same family and switches, of two narrow layers."""
    keys: dict[str, Any] = copy.deepcopy(config.to_dict())
    small = dict(_TINY)
    heads, shared = config.num_attention_heads, getattr(config, "num_key_value_heads", None)
    if shared is not None:
        small["num_key_value_heads"] = 4 if shared == heads else 2 if shared > 1 else 1
    for name, size in small.items():
        name = config.attribute_map.get(name, name)
        if keys.get(name) is not None:
            keys[name] = size
    if keys.get("layer_types"):
        keys["layer_types"] = keys["layer_types"][:2]
    keys.update(dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id")))
    return AutoConfig.for_model(keys.pop("model_type"), **keys)


@torch.no_grad()
def _distance(config: PretrainedConfig) -> float:
    """How far packed logits are from the library's own, over the largest of these."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model, library = _make(config, PACKED_CAUSAL), _make(config, "eager")
        for parameter in model.parameters():  # so large that every part matters
            parameter += 0.2 * torch.randn_like(parameter)
        ids = torch.randint(config.vocab_size, (22,))
    library.load_state_dict(model.state_dict())
    row = pack([(ids, torch.tensor([7, 5, 10]))])
    packed = hidden_states(model, row) @ model.get_output_embeddings().weight.t()
    apart = [library(piece[None]).logits[0] for piece in row["input_ids"].split([7, 5, 9])]
    reference = torch.cat(apart)
    return float((packed - reference).abs().max() / reference.abs().max())


def _make(config: PretrainedConfig, attention: str) -> Any:
    return AutoModelForCausalLM.from_config(
        copy.deepcopy(config), attn_implementation=attention, dtype=torch.float32
    ).eval()
