"""One buffer for all gradients of a model: zeroed, all-reduced and clipped as one tensor.

The price is that no `.grad` may be replaced.

DistributedDataParallel's buckets gain nothing, for ALBERT's gradients are ready only when backward
is over, and their layout changes after the first step, so that a sum over three or more ranks is
rounded in another order after a restart.
"""

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

WIRES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_ALIGNMENT = 32  # elements: 128 bytes, so that vector loads stay aligned in every view
_all_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)  # torch 2.13
_FP16_PEAK = 1024.0  # what the largest gradient becomes on an fp16 wire, far from its 65,504
_LARGEST_SCALE = 2.0**120  # so that it stays finite for a peak of next to nothing
_CHUNK = 2048  # squares that a CPU adds up in fp32: an error of at most 8e-6 of their root


class FlatGradients:
    """Makes every `.grad` a view of one float32 buffer, and broadcasts rank 0's parameters.

    No `.grad` may be set to None: zero with `zero()`, not with the optimizer.

    Args:
        parameters: float32, on one device, each once.
        slots: ranks of torch.distributed's default group; 1 for none.
        wire: type of a gradient on the network, "fp32", "bf16" or "fp16".
    """

    def __init__(self, parameters: Iterable[nn.Parameter], slots: int, wire: str = "fp32") -> None:
        self.parameters = list(parameters)
        self.slots = slots
        self.wire = WIRES[wire]
        sizes = [-(-p.numel() // _ALIGNMENT) * _ALIGNMENT for p in self.parameters]
        device = self.parameters[0].device
        self.flat = torch.zeros(sum(sizes), dtype=torch.float32, device=device)
        # Each view is aligned, so it may be followed by some elements of padding, which stay zero.
        for parameter, view in zip(self.parameters, self.flat.split(sizes), strict=True):
            parameter.grad = view[: parameter.numel()].view_as(parameter)
            if slots > 1:
                dist.broadcast(parameter.data, src=0)

    def zero(self) -> None:
        self.flat.zero_()

    def average(self) -> None:
        """Average the gradients over all ranks, bitwise identically. Collective; once per step."""
        if self.slots > 1:
            all_reduce(self.flat, self.wire)
            self.flat.div_(self.slots)

    def clip(self, max_norm: float) -> Tensor:
        """Scale to a Euclidean norm of at most `max_norm` (0: no limit); return the norm before.
        Does not block on the device.
        """
        # The padding between the views is zero, and adds nothing.
        norm = euclidean_norm(self.flat)
        if max_norm:
            self.flat.mul_((max_norm / (norm + 1e-6)).clamp(max=1.0))
        return norm

    def zero_unless(self, keep: Tensor) -> None:
        """Zero all, also NaN, if the bool `keep` is False; does not block on the device."""
        self.flat.masked_fill_(~keep, 0.0)


def euclidean_norm(values: Tensor) -> Tensor:
    """Return the Euclidean norm of fp32 `values` of any shape, a scalar, fp32.

    On a CPU torch adds up all squares in fp32, one after another. Of 109 M random numbers the later
    squares are so small beside the sum that the norm comes out 1.2 % too small. Here fp32 sums have
    at most `_CHUNK` squares, and the norms of the chunks are combined in fp64. A chunk is never
    split among threads, so the bits are the same for any number of threads. A GPU adds in a tree.
    """
    if values.device.type != "cpu":
        return torch.linalg.vector_norm(values)
    norms = values.flatten()
    while len(norms) > _CHUNK:
        complete = len(norms) // _CHUNK * _CHUNK
        chunks = norms[:complete].view(-1, _CHUNK)
        remainder = norms[complete:]
        # fp32 [chunks + 1] the first time, then fp64
        chunk_norms = torch.linalg.vector_norm(chunks, dim=1)
        last_norm = torch.linalg.vector_norm(remainder, dim=0, keepdim=True)
        norms = torch.cat((chunk_norms, last_norm)).double()
    return torch.linalg.vector_norm(norms).float()


def euclidean_norms(tensors: list[Tensor]) -> Tensor:
    """Return `euclidean_norm` of each fp32 tensor, [tensors]; on a GPU with one kernel for many."""
    if tensors[0].device.type == "cpu":
        return torch.stack([euclidean_norm(tensor) for tensor in tensors])
    return torch.stack(torch._foreach_norm(tensors))


def local_part(tensor: Tensor) -> Tensor:
    """Return this rank's shard of a tensor that may be sharded over ranks."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def local_gradients(parameters: Iterable[Tensor]) -> list[Tensor]:
    """Return this rank's shards of the parameters' gradients; each has one."""
    return [local_part(p.grad) for p in parameters if p.grad is not None]


def shard_of(tensor: Tensor, whole: Tensor) -> Tensor:
    """Return this rank's shard of `whole`, split as `tensor` is: a DTensor or a plain tensor.

    Tensor parallelism splits first, and FSDP splits the result: rows 0-7 on (shard 2, tensor 2) are
    0 1 | 2 3 of tensor rank 0 and 4 5 | 6 7 of tensor rank 1.
    """
    if not isinstance(tensor, DTensor):
        return whole
    mesh = tensor.device_mesh
    shard = whole
    for axis in reversed(range(mesh.ndim)):
        placement: Any = tensor.placements[axis]  # a Shard has `dim`; its base class has not
        if placement.is_replicate():
            continue
        # As torch splits: all shards but the last ones are of equal size.
        rows = shard.shape[placement.dim]
        size = -(-rows // mesh.size(axis))  # 257 rows in four: 65, 65, 65, 62
        start = min(mesh.get_local_rank(axis) * size, rows)
        shard = shard.narrow(placement.dim, start, min(size, rows - start))
    return shard


def all_reduce(flat: Tensor, wire: torch.dtype) -> None:
    """Sum float32 `flat` [n] over the ranks of the default group, in place.

    A half-precision wire halves the bytes. Each value is rounded when sent and when returned; for
    bf16 the error is at most 2^-8 of the largest addend. fp16 is finer but has a small range, so
    all ranks first agree on the largest gradient and scale by it.
    """
    if wire is torch.float32:
        dist.all_reduce(flat)
    elif wire is torch.float16:
        scale = _agree_on_scale(flat)
        total = _sum_in_half(flat * scale, wire)
        flat.copy_(total).div_(scale)
    else:
        flat.copy_(_sum_in_half(flat, wire))


def _agree_on_scale(flat: Tensor) -> Tensor:
    """Return the factor, a scalar, with which the sum over the ranks fits fp16. Collective."""
    peak = flat.abs().max()
    dist.all_reduce(peak, op=dist.ReduceOp.MAX)
    # All zeros stay so; NaN and infinity stay visible.
    scale = torch.where(peak > 0, _FP16_PEAK / dist.get_world_size() / peak, 1.0)
    return scale.clamp_(max=_LARGEST_SCALE)


def _sum_in_half(flat: Tensor, wire: torch.dtype) -> Tensor:
    """Return the sum over the ranks of `flat` [n], sent in half precision. Collective.

    Each rank receives all ranks' values of one chunk, adds them in float32, in the order of the
    ranks, and distributes the sum (Rabenseifner 2004: reduce-scatter and all-gather).
    """
    ranks = dist.get_world_size()
    chunk = -(-len(flat) // ranks)
    # Padded to equal chunks, of which each rank gets one from all.
    sent = flat.new_zeros(ranks * chunk, dtype=wire)
    sent[: len(flat)] = flat
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent)

    by_rank = list(received.view(ranks, chunk).unbind())
    total = by_rank[0].float()
    for other in by_rank[1:]:
        total += other
    # Rounded once more, identically for all ranks: the owner of a chunk receives it, too.
    _all_gather(sent, total.to(wire))
    return sent[: len(flat)]
