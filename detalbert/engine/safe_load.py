"""Checkpoints and model folders, read as data only: tensors, numbers and names, no code."""

import json
import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, PretrainedConfig

from detalbert.errors import Unavailable, UserError, first_line
from detalbert.hub import STATE_DICT
from detalbert.integrity import check_model_folder
from detalbert.settings.model_sizes import check_model_sizes

INDEX = "model.safetensors.index.json"
INDEXES = INDEX, "pytorch_model.bin.index.json"


def read_weights(path: Path) -> dict[str, torch.Tensor]:
    """Read a checkpoint's parameters. Raises UserError if it has more than tensors and numbers."""
    try:
        saved = _read_state_dict(path)
    except pickle.UnpicklingError:
        raise UserError(f"{path}: not loaded, for it holds more than tensors and numbers") from None
    state = saved["models_state_dict"][0]
    return {name.removeprefix("module."): value for name, value in state.items()}  # DDP's prefix


def _read_state_dict(path: Path) -> Any:
    return torch.load(path, map_location="cpu", mmap=True, weights_only=True)


# Determined's checkpoints hold NumPy's generator state, an array, whose constructors run no code.
# Allowed on import, because `determined.pytorch.load_trial_from_checkpoint_path` imports the
# trial's module (and so this one) just before it loads.
_state: Any = np.random.get_state()
_rebuild = _state[1].__reduce__()[0]  # _reconstruct, wherever this NumPy keeps it
_CONSTRUCTORS = [_rebuild, np.ndarray, np.dtype, type(np.dtype(np.uint32))]
torch.serialization.add_safe_globals(_CONSTRUCTORS)


def check_pickles(checkpoint: Path) -> None:
    """Reject a checkpoint whose pickles hold more than tensors and numbers.

    Determined unpickles `trial_state.pkl` unsafely, and `state_dict.pth` too if
    TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD is set. If one is missing, it would load a file of an older
    version (`workload_sequencer.pkl`, `checkpoint.pt`), so both must exist. Raises Unavailable if
    the system fails to read one.
    """
    for name, read in ((STATE_DICT, _read_state_dict), ("trial_state.pkl", _read_numbers)):
        try:
            read(checkpoint / name)
        except Exception as error:  # a damaged pickle raises anything
            held = re.search(r"GLOBAL (\S+)", str(error))
            reason = held[1] if held else first_line(error).split(". ")[0][:100]
            again = isinstance(error, OSError) and not isinstance(error, FileNotFoundError)
            raise (Unavailable if again else UserError)(
                f"{checkpoint / name}: not the tensors and numbers it should hold ({reason}); "
                "not loaded; go on from another checkpoint"
            ) from None


def _read_numbers(path: Path) -> Any:
    class Plain(pickle._Unpickler):  # in Python: C's would make gigabytes of a damaged number
        def find_class(self, module: str, name: str) -> Any:
            raise pickle.UnpicklingError(f"GLOBAL {module}.{name}")  # in torch's words

    with path.open("rb") as file:
        return Plain(file).load()


def read_config(name: str | Path, revision: str | None = None) -> PretrainedConfig:
    """Return the config of a model folder or hub name, without its choice of attention.

    `revision` is a branch, tag or commit of a hub name. Raises UserError if its config.json names
    code, or its index a file outside the folder, or the folder changed since its export, and as
    transformers if there is no such config.
    """
    check_model_folder(Path(name), small=True)
    keys, _ = PretrainedConfig.get_config_dict(str(name), revision=revision)
    if (key := next(_code(keys), None)) is not None:
        said = "in its config.json runs code that is not part of transformers; take it out"
        raise UserError(f"{name}: {key} {said}")
    check_model_sizes(keys, f"{name}: config.json")
    for index in INDEXES:
        if (Path(name) / index).is_file():
            read_weight_index(Path(name) / index)
    config = AutoConfig.from_pretrained(str(name), revision=revision, trust_remote_code=False)
    config._attn_implementation = None  # else it would win over the caller's
    return config


def _code(keys: Any) -> Iterator[Any]:
    """Yield the keys of a config.json, at any depth, that make transformers run external code."""
    for key, value in keys.items() if isinstance(keys, dict) else enumerate(keys):
        kernel = "attn_implementation" in str(key) and "/" in str(value)
        if kernel or (key in ("auto_map", "quantization_config") and value):
            yield key
        elif isinstance(value, (dict, list)):
            yield from _code(value)


def read_weight_index(path: Path) -> dict[str, str]:
    """Return the file of each tensor, from a model folder's index of its weights. Raises UserError
    if the index is damaged, or a file is outside its folder.
    """
    try:
        placed = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
        outside = [file for file in placed.values() if Path(file).name != file]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path}: damaged ({first_line(error)}); give another model") from None
    if outside:
        raise UserError(f"{path}: {outside[0]!r} is outside the folder; give another model")
    return placed
