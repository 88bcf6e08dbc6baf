"""Checkpoints and model folders, read as data only: tensors, finite numbers and names, no code.

A file is read twice: here, to refuse what is more than data, and by the library that loads it.
"""

import pickle
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoConfig, PretrainedConfig

from detalbert.engine.gradients import local_part
from detalbert.errors import Unavailable, UserError, first_line
from detalbert.hub import STATE_DICT, check_model_folder
from detalbert.sums import load_json

LARGEST = 1e18  # of a weight or a logit: float32 holds its square, which norms take, up to 1.8e19
INDEX = "model.safetensors.index.json"
INDEXES = INDEX, "pytorch_model.bin.index.json"
# The largest sizes that a model's config may have: they are refused before anything is built.
LARGEST_SIZES = {
    "num_hidden_layers": 1_000,
    "n_layer": 1_000,
    "num_hidden_groups": 1_000,
    "inner_group_num": 1_000,
    "num_attention_heads": 1_024,
    "n_head": 1_024,
    "num_key_value_heads": 1_024,
    "head_dim": 1_024,
    "hidden_size": 65_536,
    "n_embd": 65_536,
    "embedding_size": 65_536,
    "num_labels": 65_536,
    "intermediate_size": 10_000_000,
    "n_inner": 10_000_000,
    "vocab_size": 10_000_000,
}
# The two that no config with one of them leaves out, and their names in some families.
OTHER_NAMES = {"hidden_size": ["d_model"], "num_hidden_layers": ["n_layer", "num_layers"]}


def read_weights(path: Path) -> dict[str, torch.Tensor]:
    """Read a checkpoint's parameters. Raises UserError if it has more than tensors and numbers."""
    try:
        saved = _read_state_dict(path)
    except pickle.UnpicklingError:
        raise UserError(
            "not loaded, for it holds more than tensors and numbers", key=str(path)
        ) from None
    weights = saved["models_state_dict"][0]
    return {name.removeprefix("module."): weight for name, weight in weights.items()}  # DDP's


def _read_state_dict(path: Path) -> dict[str, Any]:
    return torch.load(path, map_location="cpu", mmap=True, weights_only=True)


# Determined's checkpoints hold NumPy's generator state, an array, whose constructors run no code.
# Allowed on import, because `determined.pytorch.load_trial_from_checkpoint_path` imports the
# trial's module (and so this one) just before it loads.
_reconstruct: Any = np.zeros(1, np.uint32).__reduce__()[0]  # wherever this NumPy keeps it
_CONSTRUCTORS: list[Any] = [_reconstruct, np.ndarray, np.dtype, type(np.dtype(np.uint32))]
torch.serialization.add_safe_globals(_CONSTRUCTORS)


def check_pickles(checkpoint: Path) -> None:
    """Reject a checkpoint whose pickles hold more than tensors and numbers.

    Determined unpickles `trial_state.pkl` unsafely, and `state_dict.pth` too if
    TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD is set. If one is missing, it would load a file of an older
    version (`workload_sequencer.pkl`, `checkpoint.pt`), so both must exist. Raises Unavailable if
    the system fails to read one.
    """
    readers = {STATE_DICT: _read_state_dict, "trial_state.pkl": _read_numbers}
    for name, read in readers.items():
        path = checkpoint / name
        try:
            read(path)
        except Exception as error:  # a damaged pickle raises anything
            raise _not_data(path, error) from None


def _not_data(path: Path, error: Exception) -> UserError:
    """Return the error for a pickle that was not read, with the first name of code in it."""
    code = re.search(r"GLOBAL (\S+)", str(error))
    reason = code[1] if code else first_line(error).split(". ")[0][:100]
    may_succeed_later = isinstance(error, OSError) and not isinstance(error, FileNotFoundError)
    kind = Unavailable if may_succeed_later else UserError
    return kind(
        f"not the tensors and numbers it should hold ({reason})",
        key=str(path),
        cure="not loaded; go on from another checkpoint",
    )


def _read_numbers(path: Path) -> object:
    class Plain(pickle._Unpickler):  # in Python: C's would make gigabytes of a damaged number
        def find_class(self, module: str, name: str) -> object:
            raise pickle.UnpicklingError(f"GLOBAL {module}.{name}")  # in torch's words

    with path.open("rb") as file:
        return Plain(file).load()


def read_config(name: str | Path, revision: str | None = None) -> PretrainedConfig:
    """Return the config of a model folder or hub name, without its choice of attention.

    `revision` is a branch, tag or commit of a hub name. Raises UserError if its config.json names
    code, or its index a file outside the folder, or the folder changed since its export, and as
    transformers if there is no such config.
    """
    folder = Path(name)
    check_model_folder(folder)
    keys, _ = PretrainedConfig.get_config_dict(str(name), revision=revision)
    check_sizes(keys, key=f"{name}: config.json")
    for key in _code_keys(keys):
        raise UserError(
            f"{key} in its config.json runs code that is not part of transformers",
            key=str(name),
            cure="take it out",
        )
    for index in INDEXES:
        if (folder / index).is_file():
            read_weight_index(folder / index)
    config = AutoConfig.from_pretrained(str(name), revision=revision, trust_remote_code=False)
    config._attn_implementation = None  # else it would win over the caller's
    return config


def check_sizes(keys: Mapping[str, object], key: str) -> None:
    """Raise UserError for a size in a model's config, which is at `key`, that no model has, and for
    a depth without a width, or the other way round: the library would add that of its largest.
    """
    for name, other_names in OTHER_NAMES.items():
        if OTHER_NAMES.keys() & keys.keys() and not {name, *other_names} & keys.keys():
            raise UserError("not set", key=f"{key}.{name}", cure="set it")
    for name, largest in LARGEST_SIZES.items():
        size = keys.get(name)
        # Some families have null for the usual one.
        if size is not None and not (isinstance(size, int) and 1 <= size <= largest):
            raise UserError(
                f"{size!r:.40}", key=f"{key}.{name}", cure=f"give a number from 1 to {largest:,}"
            )


def _code_keys(value: object) -> Iterator[object]:
    """Yield the keys in a value of a config.json, at any depth, that make transformers run
    external code.
    """
    items: Iterable[tuple[object, object]] = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    for key, value in items:
        hub_kernel = "attn_implementation" in str(key) and "/" in str(value)
        own_code = key in ("auto_map", "quantization_config") and value
        if hub_kernel or own_code:
            yield key
        else:
            yield from _code_keys(value)


def read_weight_index(path: Path) -> dict[str, str]:
    """Return the file of each tensor, from a model folder's index of its weights. Raises UserError
    if the index is damaged, or a file is outside its folder.
    """
    try:
        files = load_json(path)["weight_map"]
        outside = [file for file in files.values() if Path(file).name != file]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"damaged ({first_line(error)})", key=str(path), cure="give another model"
        ) from None
    if outside:
        raise UserError(
            f"{outside[0]!r} is outside the folder", key=str(path), cure="give another model"
        )
    return files


def is_usable(tensor: Tensor) -> bool:
    """Return whether all numbers of a tensor are finite, and at most LARGEST. Makes no copy of the
    tensor; blocks on the device.
    """
    if tensor.numel() == 0 or not tensor.is_floating_point():
        return True
    low, high = torch.aminmax(tensor)  # both NaN if one number is; eight times as fast as isfinite
    return max(-low.item(), high.item()) <= LARGEST


def check_finite_weights(place: str, weights: Iterable[tuple[str, Tensor]]) -> None:
    """Raise UserError for the first of the named weights, from the file or folder `place`, that is
    not usable.
    """
    for name, weight in weights:
        if not is_usable(local_part(weight.detach())):
            raise UserError(
                f"its weight {name!r} is not finite, or too large for float32",
                key=place,
                cure="give other weights",
            )
