"""A checkpoint of a model that is split over two processes (gloo): how long training waits.

Ours copies the parts and writes the copy beside training; the peer is torch's own
`distributed.checkpoint.save` of the same state, which waits for the disk. The files are the same.
"""

import shutil
import socket
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint import state_dict as parts
from transformers import AutoConfig

from benchmarks.measure import Different, Options, rates, ratio_of
from detalbert.training.parts import TensorSaver
from lm.layout import Layout, make_mesh
from lm.model import build_model

SHAPE = {"model_type": "llama", "hidden_size": 512, "num_hidden_layers": 8, "vocab_size": 8192,
         "num_attention_heads": 8, "intermediate_size": 1408}  # fmt: skip
TINY = {**SHAPE, "hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 64}
LAYOUT = Layout(shard=2)


def checkpoint(options: Options) -> dict[str, Any]:
    """Checkpoints a second of training's time, of weights and both moments."""
    shape = TINY if options.shape == "tiny" else SHAPE
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    queue = mp.get_context("spawn").SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_process, (port, shape, options.repeats, Path(folder), queue), nprocs=2)
    found = queue.get()
    if isinstance(found, str):
        raise Different(found)
    results = rates(found["seconds"], checkpoints=1)
    whole = results.pop("whole")["seconds"]
    return {
        "results": results,
        "ratio": {"checkpoints_per_second": ratio_of(results, "checkpoints_per_second")},
        "until_on_disk": {"seconds": whole},
        "settings": {"processes": 2, "backend": "gloo", "model": shape, "bytes": found["bytes"]},
    }


def _process(
    rank: int, port: int, shape: dict[str, Any], repeats: int, folder: Path, queue: Any
) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    keys = {name: value for name, value in shape.items() if name != "model_type"}
    config = AutoConfig.for_model(shape["model_type"], **keys)
    model = build_model(config, make_mesh(LAYOUT, torch.device("cpu")), 42)
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 1e-3)
    optimizer.step()
    saver = TensorSaver(dist.new_group(backend="gloo"))
    seconds: dict[str, list[float]] = {"ours": [], "peer": [], "whole": []}
    wrong, size = "", 0
    for repeat in range(repeats + 1):  # the first is the warm-up
        paths = [folder / f"{repeat}-{side}" for side in ("ours", "peer")]
        for path in paths:
            path.mkdir(exist_ok=True)
        times = _save_both(paths, model, optimizer, saver)
        for name, value in times.items() if repeat else ():
            seconds[name].append(value)
        part = f"__{rank}_0.distcp"
        ours, theirs = ((path / part).read_bytes() for path in paths)
        wrong = wrong or (f"checkpoint: {part} is not the peer's" if ours != theirs else "")
        size = sum(file.stat().st_size for file in paths[0].iterdir())
        dist.barrier()
        if rank == 0:
            shutil.rmtree(paths[0])
            shutil.rmtree(paths[1])
    if rank == 0:
        queue.put(wrong or {"seconds": seconds, "bytes": size})
    dist.barrier()
    dist.destroy_process_group()


def _save_both(
    paths: list[Path],
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    saver: TensorSaver,
) -> dict[str, float]:
    """Seconds that training waits for ours, until it is on the disk, and for the peer."""
    dist.barrier()
    began = time.perf_counter()
    wait = saver.save(paths[0], model, optimizer)
    stall = time.perf_counter() - began
    wait()
    whole = time.perf_counter() - began
    dist.barrier()
    began = time.perf_counter()
    _save(paths[1], model, optimizer)
    peer = time.perf_counter() - began
    dist.barrier()
    return {"ours": stall, "whole": whole, "peer": peer}


def _save(path: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    state = parts.get_optimizer_state_dict(model, optimizer)["state"]
    tensors = {name: {k: v for k, v in kept.items() if v.ndim} for name, kept in state.items()}
    tree = {"model": parts.get_model_state_dict(model), "optimizer": tensors}
    dcp.save(tree, checkpoint_id=path)
