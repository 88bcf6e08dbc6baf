"""How many layers a model config may have, and the ranges of its rotary positions.

Sizes of tensors are no matter here: torch counts them without memory (engine/models.py). The
number of modules is: a billion layers take minutes even without memory, and some of transformers'
configs make lists as long. So these counts are checked before transformers sees them.
"""

import math
import re

from detalbert.errors import UserError

MOST_MODULES = 1_000
# Least and most by transformers' names of the keys, at any depth. The counts of modules are
# num_hidden_layers, n_layer, encoder_layers, inner_group_num, block_sizes, num_attention_heads,
# num_local_experts. Of rotary positions out of these ranges, cosines are no numbers, or of no size
# that fits.
_LIMITS = (
    (r"(?:^|_)(?:layers?|groups?|group_num|blocks|block_sizes|depths|heads?)$", -math.inf, 1_000),
    (r"(?:^|_)experts$", -math.inf, 100_000),
    (r"^rope_theta$", 1, 1e30),
    (r"^(?:partial_rotary_factor|rotary_pct)$", 1e-3, 1),
    (r"^factor$", 1e-3, 1_000_000),
    (r"^attention_factor$", 1e-6, 1_000_000),
    (r"^original_max_position_embeddings$", 1, 1_000_000_000),
)


def check_model_sizes(keys: object, section: str) -> None:
    """Raise UserError if the keys of a model config, at any depth, count too many modules, or a
    number of rotary positions is out of range.

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
