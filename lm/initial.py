"""Weights of a sharded model: drawn by transformers' own rules, or read from safetensors.

A parameter's values depend on (seed, name): each rank draws or reads one unsharded parameter at a
time and keeps its shard. So every layout starts from bitwise identical weights.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from safetensors import safe_open
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel

from detalbert import hub
from detalbert.engine.finite import check_finite_weights
from detalbert.engine.gradients import local_part, shard_of
from detalbert.engine.models import model_error
from detalbert.engine.safe_load import INDEX, read_weight_index
from detalbert.errors import UserError, as_user_error, first_line
from detalbert.hub import check_model_folder, find_local

# By model type: parameters that `save_pretrained`, and so the hub, files under other names.
FILED_AS = {"gpt_neox": {"lm_head.weight": "embed_out.weight"}}
_KEY = "hyperparameters.model"
_CURE = "give a folder whose weights fit its config.json"


Write = Callable[[Tensor, torch.Generator], object]  # into a tensor, or a part of it
Rules = dict[str, list[Write]]  # by parameter or buffer, in order


class _Recorder(TorchDispatchMode):
    """Dispatch mode that records the operations that write to given tensors, in order."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.names = {id(tensor): name for name, tensor in tensors.items()}
        self.rules: Rules = {name: [] for name in tensors}

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if args and func._schema.name.endswith("_"):  # it writes to its first argument
            self._record(func, args[0], args[1:], kwargs)
        return func(*args, **kwargs)

    def _record(
        self, operation: OpOverload, written: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        base = getattr(written, "_base", None)  # of a view
        name = self.names.get(id(written if base is None else base))
        if name is None:
            return
        size, stride, offset = written.size(), written.stride(), written.storage_offset()
        is_random = any(argument.name == "generator" for argument in operation._schema.arguments)

        def write(tensor: Tensor, generator: torch.Generator) -> None:
            drawn = {"generator": generator} if is_random else {}
            operation(tensor.as_strided(size, stride, offset), *args, **{**kwargs, **drawn})

        self.rules[name].append(write)


def record_rules(model: PreTrainedModel) -> Rules:
    """Record how transformers initializes each parameter and buffer of `model`, on the meta device.

    Raises:
        UserError: if it does not initialize one of them.
    """
    recorder = _Recorder({**dict(model.named_parameters()), **dict(model.named_buffers())})
    with recorder:
        model.initialize_weights()
    for name, writes in recorder.rules.items():
        if not writes:
            raise UserError(
                f"transformers has no rule for the initial values of {name!r} "
                f"of {type(model).__name__}",
                key=_KEY,
                cure="use another",
            )
    return recorder.rules


@torch.no_grad()
def draw(name: str, tensor: Tensor, rules: Rules, seed: int) -> Tensor:
    """Return unsharded parameter or buffer `name`, in shape, type and device of `tensor`."""
    # The values depend on seed and name alone, not on what was drawn before.
    digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
    generator = torch.Generator(tensor.device)
    generator.manual_seed(int.from_bytes(digest, "little"))
    unsharded = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    # Repeat what transformers does: some rules write a part, such as the padding token's row.
    for write in rules[name]:
        write(unsharded, generator)
    return unsharded


def fill(model: nn.Module, rules: Rules, seed: int) -> None:
    """Draw all parameters and buffers of a sharded model whose storage exists."""
    for name, parameter in model.named_parameters():
        unsharded = draw(name, parameter, rules, seed=seed)
        _copy_shard(parameter, unsharded)
    fill_buffers(model, rules)


def fill_buffers(model: nn.Module, rules: Rules) -> None:
    """Set buffers that no checkpoint holds, such as the frequencies of rotary positions."""
    for name, buffer in model.named_buffers():
        buffer.copy_(draw(name, buffer, rules, seed=0))


def _copy_shard(parameter: nn.Parameter, unsharded: Tensor) -> None:
    """Set this rank's shard of a parameter from its unsharded values."""
    local_part(parameter.data).copy_(shard_of(parameter, unsharded))


def load_initial(model: PreTrainedModel, rules: Rules, name: str) -> None:
    """Read all parameters from the safetensors of a folder or hub name, one at a time.

    Raises:
        UserError: if weights are missing, not finite or do not fit; Unavailable if the hub failed.
    """
    files = _find_files(name)
    for key, parameter in model.named_parameters(remove_duplicate=False):
        # A tied parameter is filed once, under either name.
        filed_key = _find_key(model, key, files)
        if filed_key is None and key in model.all_tied_weights_keys:
            continue
        if filed_key is None:
            raise UserError(f"the weights of {name!r} lack {key!r}", key=_KEY, cure=_CURE)
        file = files[filed_key]
        unreadable = partial(_unreadable, str(file))
        with as_user_error(unreadable), safe_open(file, "pt") as weights:
            unsharded = weights.get_tensor(filed_key)
        if unsharded.shape != parameter.shape:
            raise UserError(
                f"{filed_key!r} of {name!r} is {list(unsharded.shape)}, and its config says "
                f"{list(parameter.shape)}",
                key=_KEY,
                cure=_CURE,
            )
        # All of it, not this rank's shard: so no rank goes on without the others.
        check_finite_weights(str(file), [(filed_key, unsharded)])
        _copy_shard(parameter, unsharded)
    fill_buffers(model, rules)


def _find_key(model: PreTrainedModel, key: str, files: Mapping[str, Path]) -> str | None:
    """Return the name under which `files` have parameter `key`: its own, that of the base model, or
    one that the type's files use; None if they lack it.
    """
    filed_as = FILED_AS.get(model.config.model_type, {})
    names = [key, key.removeprefix(f"{model.base_model_prefix}."), filed_as.get(key)]
    return next((name for name in names if name in files), None)


def _find_files(name: str) -> dict[str, Path]:
    """Return the file of each tensor of a model; download them if `name` is the hub's."""
    folder = Path(find_local(name))
    if not folder.is_dir():
        with as_user_error(partial(model_error, name)):
            folder = Path(hub.load_named(snapshot_download, name, allow_patterns=hub.MODEL_FILES))
    # Weights are in several files with an index, or in one.
    check_model_folder(folder)
    index = folder / INDEX
    if index.is_file():
        return {key: folder / file for key, file in read_weight_index(index).items()}
    file = folder / "model.safetensors"
    with as_user_error(partial(_unreadable, name)), safe_open(file, "pt") as weights:
        return dict.fromkeys(weights.keys(), file)


def _unreadable(name: str, error: BaseException) -> UserError:
    return UserError(f"{name!r} has no safetensors that can be read: {first_line(error)}", key=_KEY)
