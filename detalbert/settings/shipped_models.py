"""Configs of the models that the shipped configs name, so that a plan needs no download."""

from detalbert.settings.albert import published_configs
from detalbert.settings.values import Config

# config.json of microsoft/deberta-v3-large (He et al. 2021, arXiv:2111.09543), as far as it differs
# from transformers' defaults.
_DEBERTA_V3_LARGE: Config = {
    "model_type": "deberta-v2",
    "vocab_size": 128_100,
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
    "relative_attention": True,
    "position_buckets": 256,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": ["p2c", "c2p"],
    "position_biased_input": False,
    "type_vocab_size": 0,
}


def shipped_configs() -> dict[str, Config]:
    """Return the keys of the config of each model, by its name without owner."""
    return {
        **published_configs(),
        "deberta-v3-large": dict(_DEBERTA_V3_LARGE),
        "ModernBERT-base": {"model_type": "modernbert"},  # the defaults of its class
    }
