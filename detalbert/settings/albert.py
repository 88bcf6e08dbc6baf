"""Sizes of the published ALBERT models."""

from detalbert.settings.values import Config

SIZE_KEYS = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "embedding_size",
    "intermediate_size",
)
# Lan et al. 2020 (arXiv:1909.11942), table 1; `tiny` is for tests and laptops.
SIZES = {
    "tiny": (128, 4, 4, 64, 512),
    "base": (768, 12, 12, 128, 3072),
    "large": (1024, 24, 16, 128, 4096),
    "xlarge": (2048, 24, 16, 128, 8192),
    "xxlarge": (4096, 12, 64, 128, 16384),
}
VOCABULARY = 30_000


def published_configs() -> dict[str, Config]:
    """Return the keys of the config of each published model, by its name without owner."""
    configs = {}
    for size, numbers in SIZES.items():
        if size != "tiny":
            configs[f"albert-{size}-v2"] = {
                "model_type": "albert",
                "vocab_size": VOCABULARY,
                "hidden_dropout_prob": 0,
                "attention_probs_dropout_prob": 0,
                **dict(zip(SIZE_KEYS, numbers, strict=True)),
            }
    return configs
