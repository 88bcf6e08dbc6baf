"""Layouts of a model on ranks: replicas, shards of a replica, and tensor-parallel layers.

T neighbours split each layer's products (tensor parallel, Shoeybi 2019, arXiv:1909.08053) and read
the same rows, S such groups shard the parameters (FSDP, Zhao 2023, arXiv:2304.11277), R replicas of
S x T ranks add up their gradients.
"""

import functools
from collections.abc import Mapping
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel
from transformers import PretrainedConfig

from detalbert.engine.memory import Memory, Sizes, split
from detalbert.errors import UserError
from lm.hparams import Layout, LmHParams, parse_layout

# What the library's plans call the two splits of a linear layer.
STYLES: dict[str, type[ParallelStyle]] = {"colwise": ColwiseParallel, "rowwise": RowwiseParallel}


def choose_layout(
    keys: Mapping[str, Any] | Literal["auto"],
    config: PretrainedConfig,
    slots: int,
    slots_per_machine: int,
) -> Layout:
    """Return the layout of `keys`; by default shards inside a machine, replicas across machines.

    64 ranks on machines of 8 are 8 replicas of 8 shards. Raises UserError as `parse_section` does,
    and if the layout does not fit the ranks, the machines or the model.
    """
    given = parse_layout(keys)
    layout = Layout(**given)
    tensor, shard, replicate = layout.tensor, layout.shard, layout.replicate
    units = slots // tensor or 1
    if "shard" not in given and "replicate" in given:
        shard = units // replicate or 1
    elif "shard" not in given:
        inside = min(slots_per_machine, slots) // tensor or 1
        shard = units if units % inside else inside
    if "replicate" not in given:
        replicate = units // shard or 1
    layout = Layout(replicate, shard, tensor)
    if layout.slots != slots:
        said = f"{layout} is {layout.slots} processes, and the experiment has {slots} slots"
        raise UserError(f"hyperparameters.layout: {said}; make it fit, or leave a key out")
    _check_tensor(layout, config, slots_per_machine)
    return layout


def _check_tensor(layout: Layout, config: PretrainedConfig, slots_per_machine: int) -> None:
    tensor, key = layout.tensor, "hyperparameters.layout.tensor"
    if tensor == 1:
        return
    if slots_per_machine % tensor:
        said = f"{tensor} peers do not fit inside machines of {slots_per_machine} slots"
        raise UserError(f"{key}: {said}; use a divisor of these")
    plan = tensor_plan(config)
    if not plan or not set(plan.values()) <= set(STYLES):
        said = f"{config.model_type} has no tensor-parallel plan of linear layers in transformers"
        raise UserError(f"{key}: {said}; use tensor 1 and more shards")
    for name in ("num_attention_heads", "num_key_value_heads"):
        heads = getattr(config, name, None)
        if heads is not None and heads % tensor:
            raise UserError(f"{key}: {tensor} does not divide the model's {name} {heads}")


def tensor_plan(config: PretrainedConfig) -> dict[str, str]:
    """Return transformers' tensor-parallel plan by module name; {} if it has none.

    Its split of an embedding (transformers 5.17) is left out: each rank holds the embedding whole.
    """
    plan = getattr(config, "base_model_tp_plan", None) or {}
    return {name: style for name, style in plan.items() if style != "embedding_rowwise"}


def split_memory(sizes: Sizes, layout: Layout, hparams: LmHParams, grid: bool = False) -> Memory:
    """Estimate the memory per GPU with `layout`; see memory.split."""
    half = hparams.precision != "fp32"
    return split(sizes, layout.shard, layout.tensor, half, hparams.recomputed, grid)


def make_mesh(layout: Layout, device: torch.device) -> DeviceMesh:
    """Return the ranks as a mesh [replicate, shard, tensor]; start a group of one if missing."""
    if not dist.is_initialized():
        backend = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    shape = layout.replicate, layout.shard, layout.tensor
    return init_device_mesh(device.type, shape, mesh_dim_names=("replicate", "shard", "tensor"))


@functools.lru_cache(maxsize=1)
def host_group(world: dist.ProcessGroup) -> dist.ProcessGroup | None:
    """Return the group of all ranks for CPU tensors, which never blocks on a device. All ranks must
    call this at the same point first. Determined's own group, `world`, takes only GPU tensors.
    """
    return None if dist.get_backend(world) == "gloo" else dist.new_group(backend="gloo")
