"""Layouts of a model on ranks: replicas, shards of a replica, and tensor-parallel layers.

T neighbours split each layer's products (tensor parallel, Shoeybi 2019, arXiv:1909.08053) and read
the same rows, S such groups shard the parameters (FSDP, Zhao 2023, arXiv:2304.11277), R replicas of
S x T ranks add up their gradients.

Tensor parallelism communicates in every layer, forward and backward, so its ranks share a machine;
shards communicate once per layer, replicas once per step. More shards save memory, not traffic.
"""

import functools
from collections.abc import Mapping
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel
from transformers import PretrainedConfig

from detalbert.errors import UserError
from lm.hparams import Layout, parse_layout

# What transformers' plans call the two splits of a linear layer.
STYLES: dict[str, type[ParallelStyle]] = {"colwise": ColwiseParallel, "rowwise": RowwiseParallel}


def choose_layout(
    keys: Mapping[str, Any] | Literal["auto"],
    config: PretrainedConfig,
    slots: int,
    slots_per_machine: int,
) -> Layout:
    """Return the layout of `keys`; by default shards inside a machine, replicas across machines.

    64 ranks on machines of 8 are 8 replicas of 8 shards.

    Args:
        keys: `hyperparameters.layout`.
        config: of the model.
        slots: of the experiment.
        slots_per_machine: of the machine with the most.

    Raises:
        UserError: as `parse_section` does, and if the layout does not fit the ranks, the machines
            or the model.
    """
    configured = parse_layout(keys)
    layout = Layout(**configured)

    # Slots that no tensor-parallel group takes are shards, then replicas.
    units = slots // layout.tensor or 1
    shard = layout.shard
    if "shard" not in configured and "replicate" in configured:
        shard = units // layout.replicate or 1
    elif "shard" not in configured:
        units_per_machine = min(slots_per_machine, slots) // layout.tensor or 1
        divides = units % units_per_machine == 0
        shard = units_per_machine if divides else units
    replicate = layout.replicate
    if "replicate" not in configured:
        replicate = units // shard or 1

    layout = Layout(replicate=replicate, shard=shard, tensor=layout.tensor)
    if layout.slots != slots:
        raise UserError(
            f"{layout} is {layout.slots} processes, and the experiment has {slots} slots",
            key="hyperparameters.layout",
            cure="make it fit, or leave a key out",
        )
    if layout.tensor > 1:
        _check_tensor(layout.tensor, config, slots_per_machine)
    return layout


def _check_tensor(tensor: int, config: PretrainedConfig, slots_per_machine: int) -> None:
    """Raise UserError unless `tensor` ranks can split the layers of the model."""
    key = "hyperparameters.layout.tensor"
    if slots_per_machine % tensor:
        raise UserError(
            f"{tensor} peers do not fit inside machines of {slots_per_machine} slots",
            key=key,
            cure="use a divisor of these",
        )
    styles = set(tensor_plan(config).values())
    if not styles or not styles <= set(STYLES):
        raise UserError(
            f"{config.model_type} has no tensor-parallel plan of linear layers in transformers",
            key=key,
            cure="use tensor 1 and more shards",
        )
    # Each rank computes whole heads.
    for name in ("num_attention_heads", "num_key_value_heads"):
        heads = getattr(config, name, None)
        if heads is not None and heads % tensor:
            raise UserError(f"{tensor} does not divide the model's {name} {heads}", key=key)


def tensor_plan(config: PretrainedConfig) -> dict[str, str]:
    """Return transformers' tensor-parallel plan by module name; {} if it has none.

    Its split of an embedding (transformers 5.17) is left out: each rank holds the embedding whole.
    """
    plan = getattr(config, "base_model_tp_plan", None) or {}
    return {name: style for name, style in plan.items() if style != "embedding_rowwise"}


def make_mesh(layout: Layout, device: torch.device) -> DeviceMesh:
    """Return the ranks as a mesh [replicate, shard, tensor]; start a group of one if missing."""
    # A run of one process, or a test, has no process group.
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
