"""`max_tokens_per_forward: auto`: the longest row that this GPU's memory can train on.

Two short rows are measured and extrapolated. A search for the longest row that runs would come
closer, and run out of memory on its way.
"""

import contextlib
import math
from collections.abc import Callable

import torch
import torch.distributed as dist

from detalbert.engine.forward import Forward
from detalbert.engine.rows import dummy_row

ON_A_CPU = 4096
# By then the matrix units are full; more would only cost memory.
LARGEST = 32_768
# Of what is free: other rows fragment memory in other ways.
SPARE = 0.92
# Rows measured, in windows of the longest kind.
_PROBES = (2, 4)


def resolve(forward: Forward, longest: int, slots: int) -> int:
    """Return the budget in tokens for `forward` on its device, the same on every rank.

    Memory is linear in a row's tokens. So two short rows are measured, forward and backward, and
    extrapolated to the memory that is free next to the optimizer's two moments. On a CPU it is
    4,096. Collective.

    Args:
        forward: with its gradients allocated.
        longest: tokens of a full window.
        slots: number of ranks.
    """
    device = forward.device
    if device.type != "cuda":
        return ON_A_CPU

    # What the optimizer will allocate: two moments in fp32.
    parameters = sum(parameter.numel() for parameter in forward.model.parameters())
    moments = 2 * 4 * parameters  # bytes
    allocated = torch.cuda.memory_allocated(device)
    room = _usable_memory(device) - allocated - moments

    def measure(tokens: int) -> float:
        return peak_memory(forward, tokens, longest) - allocated

    tokens = fit(measure, room=int(room * SPARE), longest=longest)
    # Ranks must agree: a budget is part of how results are rounded.
    if slots > 1:
        smallest = torch.tensor(tokens, device=device)
        dist.all_reduce(smallest, op=dist.ReduceOp.MIN)
        tokens = int(smallest)
    return tokens


def _usable_memory(device: torch.device) -> int:
    """Return the bytes that are free or this process's, within the limit set for it."""
    free, _ = torch.cuda.mem_get_info(device)
    total = torch.cuda.get_device_properties(device).total_memory
    limit = torch.cuda.get_per_process_memory_fraction(device)
    return min(free + torch.cuda.memory_reserved(device), int(limit * total))


def fit(measure: Callable[[int], float], room: int, longest: int) -> int:
    """Return the largest token count whose memory fits in `room` bytes, by linear extrapolation.

    With 1 GB at 768 tokens and 1.5 GB at 1,536, 10 GB of room hold 14,592 tokens, rounded down to
    14,336, so that a restart computes the same. Never less than `longest`.

    Args:
        measure: returns a row's bytes for a token count, infinity if out of memory.
        room: bytes.
        longest: tokens of a full window.
    """
    few, many = (longest * windows for windows in _PROBES)
    few_bytes = measure(few)
    many_bytes = measure(many)
    if math.isinf(many_bytes):
        return longest if math.isinf(few_bytes) else few

    # A line through the two measurements.
    per_token = max(1, (many_bytes - few_bytes) / (many - few))
    fixed = few_bytes - per_token * few
    tokens = int((room - fixed) / per_token)

    # Free memory varies by some MiB: rounding hides that, so that a restart computes the same.
    step = 1024 if tokens >= 1024 else longest
    rounded = tokens // step * step
    return min(max(longest, rounded), LARGEST)


def peak_memory(forward: Forward, tokens: int, longest: int) -> float:
    """Return the peak bytes on the GPU during forward and backward; infinity if out of memory."""
    row = dummy_row(tokens, longest=longest, device=forward.device)
    forward.refresh()
    torch.cuda.reset_peak_memory_stats(forward.device)
    with contextlib.suppress(torch.OutOfMemoryError):
        forward.zero_loss_backward(row)
        return torch.cuda.max_memory_allocated(forward.device)
    return math.inf
