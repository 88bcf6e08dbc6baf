"""How many layers a model config may have.

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
MOST_MODULES = 1_000
MOST_EXPERTS = 100_000


def check_model_sizes(keys: object, section: str) -> None:
    """Raise UserError if the keys of a model config, at any depth, count too many modules.

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
