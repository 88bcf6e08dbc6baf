"""How a model is split over processes: copies of it, shards of a copy, and parts of its layers.

Of R x S x T processes, S x T hold one copy of the model: T neighbours split each layer's products
(tensor parallel, Shoeybi 2019, arXiv:1909.08053) and read the same rows, S such groups split the
parameters (FSDP, Zhao 2023, arXiv:2304.11277). R copies add up their gradients.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel
from transformers import PretrainedConfig

from detalbert.errors import UserError
from detalbert.settings.sections import Section, limited, parse_section

SECTION = "hyperparameters.layout"
MESH = ("replicate", "shard", "tensor")
# What the library's plans call the two splits of a linear layer.
STYLES: dict[str, type[ParallelStyle]] = {"colwise": ColwiseParallel, "rowwise": RowwiseParallel}


@dataclass(frozen=True)
class LayoutKeys(Section):
    """`hyperparameters.layout:`; what is not given is chosen by `choose_layout`."""

    replicate: int | Literal["auto"] = limited("auto", above=0)
    shard: int | Literal["auto"] = limited("auto", above=0)
    tensor: int | Literal["auto"] = limited("auto", above=0)


def parse_layout(value: Mapping[str, Any] | str) -> LayoutKeys:
    """`auto` or a mapping of keys. Raises UserError as `parse_section` does."""
    return LayoutKeys() if value == "auto" else parse_section(LayoutKeys, SECTION, value)


@dataclass(frozen=True)
class Layout:
    """Rank r is tensor peer r mod tensor of data rank r // tensor."""

    replicate: int = 1
    shard: int = 1
    tensor: int = 1

    @property
    def slots(self) -> int:
        return self.replicate * self.shard * self.tensor

    @property
    def data_ranks(self) -> int:
        """How many parts a global batch has."""
        return self.replicate * self.shard

    def data_rank(self, rank: int) -> int:
        """Which part of the global batch, and which random numbers, process `rank` has."""
        return rank // self.tensor

    def __str__(self) -> str:
        return f"replicate {self.replicate} x shard {self.shard} x tensor {self.tensor}"


def choose_layout(
    keys: LayoutKeys, config: PretrainedConfig, slots: int, slots_per_machine: int
) -> Layout:
    """The layout of `keys`, and of what they leave open: no tensor parallel, shards inside a
    machine, copies across machines. 64 slots on machines of 8: 8 copies of 8 shards.

    Raises UserError where it does not fit the slots, the machines or the model.
    """
    tensor = 1 if keys.tensor == "auto" else keys.tensor
    units = slots // tensor or 1
    if keys.shard != "auto":
        shard = keys.shard
    elif keys.replicate != "auto":
        shard = units // keys.replicate or 1
    else:
        inside = min(slots_per_machine, slots) // tensor or 1
        shard = units if units % inside else inside
    replicate = units // shard or 1 if keys.replicate == "auto" else keys.replicate
    layout = Layout(replicate, shard, tensor)
    if layout.slots != slots:
        raise UserError(
            f"{SECTION}: {layout} is {layout.slots} processes, and the experiment has {slots} "
            "slots; make the product fit, or leave a key out"
        )
    _check_tensor(layout, config, slots_per_machine)
    return layout


def _check_tensor(layout: Layout, config: PretrainedConfig, slots_per_machine: int) -> None:
    tensor, key = layout.tensor, f"{SECTION}.tensor"
    if tensor == 1:
        return
    if slots_per_machine % tensor:
        raise UserError(
            f"{key}: {tensor} peers do not fit inside machines of {slots_per_machine} slots; "
            f"use a divisor of {slots_per_machine}"
        )
    plan = getattr(config, "base_model_tp_plan", None) or {}
    if not plan or not set(plan.values()) <= set(STYLES):
        raise UserError(
            f"{key}: {config.model_type} has no tensor-parallel plan of linear layers alone in "
            "transformers; use tensor 1 and more shards"
        )
    for name in ("num_attention_heads", "num_key_value_heads"):
        heads = getattr(config, name, None)
        if heads is not None and heads % tensor:
            raise UserError(f"{key}: {tensor} does not divide the model's {name} {heads}")


def make_mesh(layout: Layout, device: torch.device) -> DeviceMesh:
    """The processes as a mesh [replicate, shard, tensor]; of one process where nothing has started
    a process group: this starts one then."""
    if not dist.is_initialized():
        backend = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    shape = (layout.replicate, layout.shard, layout.tensor)
    return init_device_mesh(device.type, shape, mesh_dim_names=MESH)


def host_group() -> dist.ProcessGroup | None:
    """The group of all processes for tensors on the host, which no device is waited for; every
    process asks for it at the same point first. Determined's own takes tensors on GPUs alone."""
    return _host_group(dist.group.WORLD)


@functools.lru_cache(maxsize=1)
def _host_group(world: dist.ProcessGroup) -> dist.ProcessGroup | None:
    return None if dist.get_backend(world) == "gloo" else dist.new_group(backend="gloo")
