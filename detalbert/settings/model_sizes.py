"""How many layers a model config may have.

Sizes of tensors are no matter here: torch counts them without memory (engine/model_memory.py). The
number of modules is: a billion layers take minutes even without memory, and some of transformers'
configs make lists as long. So these counts are checked before transformers sees them.
"""

import re
from collections.abc import Iterator
from typing import Any

from detalbert.errors import UserError

# The counts of modules by transformers' names for them, at any depth: num_hidden_layers, n_layer,
# encoder_layers, inner_group_num, block_sizes, num_attention_heads, num_local_experts.
_MODULES = re.compile(r"(?:^|_)(?:layers?|groups?|group_num|blocks|block_sizes|depths|heads?)$")
_EXPERTS = re.compile(r"(?:^|_)experts$")
MOST_MODULES, MOST_EXPERTS = 1_000, 100_000


def check_model_sizes(keys: Any, section: str) -> None:
    """Raise UserError if the keys of a model config, at any depth, count too many modules.

    Args:
        section: where the keys are, for the error: `hyperparameters.model_config`, or a file.
    """
    for key, value, most in _counts(keys):
        numbers = value if isinstance(value, list) else [value]
        if any(isinstance(number, (int, float)) and number > most for number in numbers):
            raise UserError(f"{section}.{key}: {value!r:.60}; use a number from 1 to {most:,}")


def _counts(keys: Any, path: str = "") -> Iterator[tuple[str, Any, int]]:
    """Yield the dotted key, the value and its largest value for each count of modules."""
    for key, value in keys.items() if isinstance(keys, dict) else ():
        if isinstance(value, dict):
            yield from _counts(value, f"{path}{key}.")
        elif _MODULES.search(str(key)):
            yield f"{path}{key}", value, MOST_MODULES
        elif _EXPERTS.search(str(key)):
            yield f"{path}{key}", value, MOST_EXPERTS
