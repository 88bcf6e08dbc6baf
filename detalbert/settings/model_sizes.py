"""Limits of the numbers in a model config, before transformers sees them.

Sizes of tensors are no matter here: torch counts them without memory (engine/models.py). But a
model without layers trains without a word, and a billion layers take minutes even without memory.
"""

import math
import re

from detalbert.errors import UserError

_COUNTS = "num_hidden_layers|n_layers?|num_hidden_groups|inner_group_num|num_attention_heads"
_COUNTS += "|n_heads?|num_key_value_heads"
_SIZES = "(?:hidden|intermediate|embedding|vocab)_size|n_embd|max_position_embeddings|n_positions"
# Least and most by transformers' names of the keys, at any depth. With rotary positions out of
# these ranges, cosines are no numbers, or of no size that fits.
_LIMITS = (
    (rf"^(?:{_COUNTS})$", 1, 1_000),
    (rf"^(?:{_SIZES})$", 1, 10_000_000),
    (r"^head_dim$", 1, 10_000),
    (r"(?:^|_)(?:layers?|groups?|blocks|block_sizes|depths|heads?)$", -math.inf, 1_000),
    (r"(?:^|_)experts$", -math.inf, 100_000),
    (r"^rope_theta$", 1, 1e30),
    (r"^(?:partial_rotary_factor|rotary_pct)$", 1e-3, 1),
    (r"^factor$", 1e-3, 1_000_000),
    (r"^attention_factor$", 1e-6, 1_000_000),
    (r"^original_max_position_embeddings$", 1, 1_000_000_000),
)


def check_model_sizes(keys: object, section: str) -> None:
    """Raise UserError if a number in a model config, at any depth, is out of its limits.

    Args:
        keys: the model config.
        section: where the keys are, for the error: `hyperparameters.model_config`, or a file.
    """
    if not isinstance(keys, dict):
        return
    for key, value in keys.items():
        check_model_sizes(value, f"{section}.{key}")
        numbers = value if isinstance(value, list) else [value]
        for pattern, least, most in _LIMITS:
            if not re.search(pattern, str(key)):
                continue
            for number in numbers:
                if isinstance(number, (int, float)) and not least <= number <= most:
                    raise UserError(
                        f"{value!r:.60}",  # a list may be long
                        key=f"{section}.{key}",
                        cure=f"use a number from {max(least, 0):g} to {most:,}",
                    )
