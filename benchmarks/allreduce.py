"""One all-reduce of a model's gradients between two processes on loopback (gloo).

Ours sends one flat tensor in fp32, fp16 or bf16; the peer what DDP does by default, fp32 buckets
of 25 MiB. Effective bandwidth is fp32 gradient bytes over seconds, whatever goes over the wire.
"""

import socket
import time
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from benchmarks.measure import Different, Options, rates
from detalbert.engine.gradients import WIRES, all_reduce
from detalbert.errors import UserError

BUCKET = 25 * 2**20 // 4  # numbers


def _reduce_buckets(flat: torch.Tensor) -> None:
    for bucket in flat.split(BUCKET):
        dist.all_reduce(bucket)


def allreduce(options: Options) -> dict[str, Any]:
    """Bytes of fp32 gradients a second, by size and by what goes over the wire."""
    try:
        sizes = [int(float(size)) for size in options.sizes.split(",")]
    except ValueError:
        raise UserError(f"--sizes {options.sizes}: expected numbers with commas between") from None
    table = {
        str(size): rates(two_processes(size, options.repeats), bytes=4 * size) for size in sizes
    }
    last = table[str(sizes[-1])]
    best = min(WIRES, key=lambda wire: last[wire]["seconds"]["median"])
    results = {"ours": {**last[best], "wire": best}, "peer": last["peer"]}
    ours, peer = (results[side]["seconds"]["median"] for side in ("ours", "peer"))
    return {
        "results": results,
        "ratio": {"bytes_per_second": peer / ours},
        "sizes": table,
        "settings": {"processes": 2, "backend": "gloo", "numbers": sizes},
    }


def two_processes(size: int, repeats: int) -> dict[str, list[float]]:
    """Seconds of each all-reduce of `size` numbers, by wire, and of the peer's."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    queue = mp.get_context("spawn").SimpleQueue()
    mp.spawn(_process, (port, size, repeats, queue), nprocs=2)
    found = queue.get()
    if isinstance(found, str):
        raise Different(found)
    return found


def _process(rank: int, port: int, size: int, repeats: int, queue: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    whole = [torch.randn(size, generator=torch.Generator().manual_seed(i)) for i in range(2)]
    mine, total = whole[rank], whole[0] + whole[1]
    seconds: dict[str, list[float]] = {name: [] for name in (*WIRES, "peer")}
    wrong = ""
    for repeat in range(repeats + 1):  # the first is the warm-up
        for name, values in seconds.items():
            flat = mine.clone()
            dist.barrier()
            began = time.perf_counter()
            if name == "peer":
                _reduce_buckets(flat)
            else:
                all_reduce(flat, WIRES[name])
            if repeat:
                values.append(time.perf_counter() - began)
            allowed = 0.0 if name in ("fp32", "peer") else 4 * torch.finfo(WIRES[name]).eps
            if not repeat and not torch.allclose(flat, total, rtol=allowed, atol=8 * allowed):
                wrong = f"allreduce: the sum over {name} is not that of fp32"
    if rank == 0:
        queue.put(wrong or seconds)
    dist.barrier()
    dist.destroy_process_group()
