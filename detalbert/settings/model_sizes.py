"""How many layers a model config may have, and the ranges of its rotary positions.

Sizes of tensors are no matter here: torch counts them without memory (engine/model_memory.py). The
number of modules is: a billion layers take minutes even without memory, and some of transformers'
configs make lists as long. So these counts are checked before transformers sees them.
"""

import re

from detalbert.errors import UserError

# The counts of modules by transformers' names for them, at any depth: num_hidden_layers, n_layer,
# encoder_layers, inner_group_num, block_sizes, num_attention_heads, num_local_experts.
_MODULES = re.compile(r"(?:^|_)(?:layers?|groups?|group_num|blocks|block_sizes|depths|heads?)$")
_EXPERTS = re.compile(r"(?:^|_)experts$")
# Numbers of rotary positions: out of these ranges, cosines are no numbers, or of no size that fits.
_ROTARY = {
    "rope_theta": (1.0, 1e30),
    "partial_rotary_factor": (1e-3, 1.0),
    "rotary_pct": (1e-3, 1.0),
    "factor": (1e-3, 1e6),
    "attention_factor": (1e-6, 1e6),
    "original_max_position_embeddings": (1.0, 1e9),
}
MOST_MODULES = 1_000
MOST_EXPERTS = 100_000


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
        name = f"{section}.{key}"
        if isinstance(value, dict):
            check_model_sizes(value, name)
        elif _MODULES.search(str(key)):
            _check_count(name, value, limit=MOST_MODULES)
        elif _EXPERTS.search(str(key)):
            _check_count(name, value, limit=MOST_EXPERTS)
        elif key in _ROTARY and value is not None:
            least, most = _ROTARY[key]
            _check_rotary(name, value, least=least, most=most)


def _check_count(name: str, value: object, limit: int) -> None:
    """Raise UserError if a number, or one of a list of numbers, is greater than `limit`."""
    numbers = value if isinstance(value, list) else [value]
    for number in numbers:
        if not isinstance(number, (int, float)):
            continue
        if number > limit:
            raise UserError(
                f"{value!r:.60}",  # a list may be long
                key=name,
                cure=f"use a number from 1 to {limit:,}",
            )


def _check_rotary(name: str, value: object, least: float, most: float) -> None:
    """Raise UserError unless a value is a number from `least` to `most`."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not least <= value <= most:  # type: ignore[operator]  # a number
        raise UserError(f"{value!r:.60}", key=name, cure=f"use a number from {least:g} to {most:g}")
