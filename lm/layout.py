"""Layouts of a model on ranks: replicas, shards of a replica, and tensor-parallel layers.

T neighbours split each layer's products (tensor parallel, Shoeybi 2019, arXiv:1909.08053) and read
the same rows, S such groups shard the parameters (FSDP, Zhao 2023, arXiv:2304.11277), R replicas of
S x T ranks add up their gradients.
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

from detalbert.engine.memory import Memory, Sizes, split
from detalbert.errors import UserError
from detalbert.settings.sections import Section, limited, parse_section
from lm.hparams import LmHParams

SECTION = "hyperparameters.layout"
MESH = ("replicate", "shard", "tensor")
# What the library's plans call the two splits of a linear layer.
STYLES: dict[str, type[ParallelStyle]] = {"colwise": ColwiseParallel, "rowwise": RowwiseParallel}


@dataclass(frozen=True)
class LayoutKeys(Section):
    """`hyperparameters.layout:`; `choose_layout` chooses missing values."""

    replicate: int | Literal["auto"] = limited("auto", above=0)
    shard: int | Literal["auto"] = limited("auto", above=0)
    tensor: int | Literal["auto"] = limited("auto", above=0)


def parse_layout(value: Mapping[str, Any] | str) -> LayoutKeys:
    """Parse `auto` or a mapping of keys. Raises UserError as `parse_section` does."""
    return LayoutKeys() if value == "auto" else parse_section(LayoutKeys, SECTION, value)


@dataclass(frozen=True)
class Layout:
    """Rank r is tensor-parallel rank r mod tensor of data rank r // tensor."""

    replicate: int = 1
    shard: int = 1
    tensor: int = 1

    @property
    def slots(self) -> int:
        return self.replicate * self.shard * self.tensor

    @property
    def data_ranks(self) -> int:
        """Number of shares of a global batch."""
        return self.replicate * self.shard

    def data_rank(self, rank: int) -> int:
        """Return the data rank of `rank`, which determines its windows and random numbers."""
        return rank // self.tensor

    def __str__(self) -> str:
        return f"replicate {self.replicate} x shard {self.shard} x tensor {self.tensor}"


def choose_layout(
    keys: LayoutKeys, config: PretrainedConfig, slots: int, slots_per_machine: int
) -> Layout:
    """Return the layout of `keys`; by default shards inside a machine, replicas across machines.

    64 ranks on machines of 8 are 8 replicas of 8 shards. Raises UserError if the layout does not
    fit the ranks, the machines or the model.
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


def split_memory(sizes: Sizes, layout: Layout, hparams: LmHParams, grid: bool = False) -> Memory:
    """Estimate the memory per GPU with `layout`; see memory.split."""
    half = hparams.precision != "fp32"
    return split(sizes, layout.shard, layout.tensor, half, hparams.recomputed, grid)


def make_mesh(layout: Layout, device: torch.device) -> DeviceMesh:
    """Return the ranks as a mesh [replicate, shard, tensor]; start a group of one if missing."""
    if not dist.is_initialized():
        backend = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    shape = (layout.replicate, layout.shard, layout.tensor)
    return init_device_mesh(device.type, shape, mesh_dim_names=MESH)


def host_group() -> dist.ProcessGroup | None:
    """Return the group of all ranks for CPU tensors, which never blocks on a device. All ranks must
    call this at the same point first. Determined's own group takes only GPU tensors.
    """
    return _host_group(dist.group.WORLD)


@functools.lru_cache(maxsize=1)
def _host_group(world: dist.ProcessGroup) -> dist.ProcessGroup | None:
    return None if dist.get_backend(world) == "gloo" else dist.new_group(backend="gloo")
