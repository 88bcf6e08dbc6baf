"""Checkpoints read by safe loading: tensors and numbers, no code."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import torch

from detalbert.errors import UserError


def read_weights(path: Path) -> dict[str, torch.Tensor]:
    """The parameters of a checkpoint, by safe loading. Raises UserError for more than numbers."""
    try:
        saved = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except pickle.UnpicklingError:
        raise UserError(f"{path}: not loaded, for it holds more than tensors and numbers") from None
    state = saved["models_state_dict"][0]
    return {name.removeprefix("module."): value for name, value in state.items()}  # DDP's prefix


def allow_checkpoint_globals() -> None:
    """Let `torch.load(weights_only=True)` read Determined's checkpoints (torch >= 2.6).

    They hold NumPy's generator state, an array, which safe loading refuses by default. Only
    NumPy's own array constructors are allowed, nothing that runs code.
    """
    state: Any = np.random.get_state()
    rebuild = state[1].__reduce__()[0]  # _reconstruct, wherever this NumPy keeps it
    dtype = type(np.dtype(np.uint32))
    torch.serialization.add_safe_globals([rebuild, np.ndarray, np.dtype, dtype])


# On import, because `determined.pytorch.load_trial_from_checkpoint_path` imports the trial's
# module (and so this one) just before it loads.
allow_checkpoint_globals()


def check_trial_state(checkpoint: Path) -> None:
    """Refuse a `trial_state.pkl` that holds more than numbers: Determined unpickles it as it is.

    Raises UserError when it names any class or function.
    """

    class Plain(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            raise pickle.UnpicklingError(f"it holds {module}.{name}")

    path = checkpoint / "trial_state.pkl"
    try:
        with path.open("rb") as file:
            Plain(file).load()
    except (pickle.UnpicklingError, EOFError, ValueError) as error:
        raise UserError(f"{path}: not the numbers it should hold ({error}); not loaded") from None
