"""Weights of a sharded model: drawn by transformers' own rules, or read from safetensors.

A parameter's values depend on (seed, name): each rank draws or reads one unsharded parameter at a
time and keeps its shard. So every layout starts from bitwise identical weights.
"""

import hashlib
from functools import partial
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from safetensors import safe_open
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel

from detalbert import hub
from detalbert.engine.finite import check_finite_weights
from detalbert.engine.gradients import local_part, shard_of
from detalbert.engine.models import model_error
from detalbert.engine.safe_load import INDEX, read_weight_index
from detalbert.errors import UserError, as_user_error, first_line
from detalbert.hub import find_local
from detalbert.integrity import check_model_folder

# Of each tensor: operations that write to it, the part that each writes (size, stride, offset), its
# other arguments and keywords.
Rules = dict[str, list[tuple[Any, ...]]]
# By model type: parameters that `save_pretrained`, and so the hub, files under other names.
FILED_AS = {"gpt_neox": {"lm_head.weight": "embed_out.weight"}}
_CURE = "give a folder whose weights fit its config.json"


class _Recorder(TorchDispatchMode):
    """Dispatch mode that records the operations that write to given tensors, in order."""

    def __init__(self, names: dict[int, str]) -> None:
        super().__init__()
        self.names = names  # by id()
        self.rules: Rules = {name: [] for name in names.values()}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = kwargs or {}
        written: Any = args[0] if args and func._schema.name.endswith("_") else None
        base = getattr(written, "_base", None)
        name = self.names.get(id(written if base is None else base))
        if name is not None:
            part = written.size(), written.stride(), written.storage_offset()
            self.rules[name].append((func, part, args[1:], kwargs))
        return func(*args, **kwargs)


def record_rules(model: PreTrainedModel) -> Rules:
    """Record how transformers initializes each parameter and buffer of `model`, on the meta device.
    Raises UserError if it does not initialize one of them.
    """
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    recorder = _Recorder({id(tensor): name for name, tensor in tensors.items()})
    with recorder:
        model.initialize_weights()
    if missing := [name for name, steps in recorder.rules.items() if not steps]:
        said = f"transformers has no rule for the initial values of {missing[0]!r}"
        raise UserError(f"hyperparameters.model: {said} of {type(model).__name__}; use another")
    return recorder.rules


@torch.no_grad()
def draw(name: str, tensor: Tensor, rules: Rules, seed: int) -> Tensor:
    """Return unsharded parameter or buffer `name`, in shape, type and device of `tensor`."""
    digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
    generator = torch.Generator(tensor.device).manual_seed(int.from_bytes(digest, "little"))
    whole = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    for func, part, args, kwargs in rules[name]:
        if any(argument.name == "generator" for argument in func._schema.arguments):
            kwargs = {**kwargs, "generator": generator}
        func(whole.as_strided(*part), *args, **kwargs)
    return whole


def fill(model: nn.Module, rules: Rules, seed: int) -> None:
    """Draw all parameters and buffers of a sharded model whose storage exists."""
    for name, parameter in model.named_parameters():
        whole = draw(name, parameter, rules, seed)
        local_part(parameter.data).copy_(shard_of(parameter, whole))
    fill_buffers(model, rules)


def fill_buffers(model: nn.Module, rules: Rules) -> None:
    """Set buffers that no checkpoint holds, such as the frequencies of rotary positions."""
    for name, buffer in model.named_buffers():
        buffer.copy_(draw(name, buffer, rules, seed=0))


def load_initial(model: PreTrainedModel, rules: Rules, name: str) -> None:
    """Read all parameters from the safetensors of a folder or hub name, one at a time. Raises
    UserError (Unavailable if the hub failed) if weights are missing, not finite or do not fit.
    """
    files = _files(name)
    prefix, filed = f"{model.base_model_prefix}.", FILED_AS.get(model.config.model_type, {})
    for key, parameter in model.named_parameters(remove_duplicate=False):
        names = key, key.removeprefix(prefix), filed.get(key)
        found = next((name for name in names if name in files), None)
        if found is None:
            if key in model.all_tied_weights_keys:
                continue
            raise UserError(f"hyperparameters.model: the weights of {name!r} lack {key!r}; {_CURE}")
        file = files[found]
        with as_user_error(partial(_unreadable, str(file))), safe_open(file, "pt") as weights:
            whole = weights.get_tensor(found)
        if whole.shape != parameter.shape:
            shapes = f"is {list(whole.shape)}, and its config says {list(parameter.shape)}"
            raise UserError(f"hyperparameters.model: {found!r} of {name!r} {shapes}; {_CURE}")
        # All of it, not this rank's shard: so no rank goes on without the others.
        check_finite_weights(str(file), [(found, whole)])
        local_part(parameter.data).copy_(shard_of(parameter, whole))
    fill_buffers(model, rules)


def _files(name: str) -> dict[str, Path]:
    """Return the file of each tensor of a model; download them if `name` is the hub's."""
    folder = Path(find_local(name))
    if not folder.is_dir():
        with as_user_error(partial(model_error, name)):
            found = hub.load_named(snapshot_download, name, allow_patterns=hub.MODEL_FILES)
        folder = Path(found)
    check_model_folder(folder)
    if (folder / INDEX).is_file():
        return {key: folder / file for key, file in read_weight_index(folder / INDEX).items()}
    file = folder / "model.safetensors"
    with as_user_error(partial(_unreadable, name)), safe_open(file, "pt") as weights:
        return dict.fromkeys(weights.keys(), file)


def _unreadable(name: str, error: BaseException) -> UserError:
    reason = f"{name!r} has no safetensors that can be read: {first_line(error)}"
    return UserError(f"hyperparameters.model: {reason}")
