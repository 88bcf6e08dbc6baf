"""Checks before any work: faults that would end a task an hour later end it now, in one line.

`check` is for one process per machine and uses no GPU memory; `check_collectives` is for all ranks,
once their process group exists. Whether a model fits on a GPU is for `cluster.plan` to say.
"""

import contextlib
import datetime
import logging
import os
import re
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pynvml
import torch
from determined.common import constants

from detalbert.errors import Unavailable, UserError, first_line

GIB = 2**30
log = logging.getLogger(__name__)


def check(cache_dir: str, gpu_uuids: Sequence[str]) -> None:
    """Check GPUs and the cache's disk of this machine.

    Args:
        cache_dir: of the experiment's data.
        gpu_uuids: of the container's GPUs.

    Raises:
        Unavailable: the disk is too small.
        UserError: for another fault.
    """
    check_gpus(gpu_uuids)
    check_disk(Path(cache_dir), needed=GIB, purpose="the cache")


def check_gpus(gpu_uuids: Sequence[str]) -> None:
    """Raise UserError if this torch build does not see or support the container's GPUs."""
    # torch would train on the CPU.
    seen = torch.cuda.device_count() if gpu_uuids else 0
    if seen < len(gpu_uuids):
        raise UserError(
            f"torch {torch.__version__} sees {seen} of the container's {len(gpu_uuids)} GPUs: "
            "a CPU build, or a CUDA newer than the machine's driver",
            cure="take another image (cluster/Dockerfile)",
        )
    check_architectures()


def check_local_gpus() -> None:
    """Log a warning if this machine has GPUs that torch does not see, so that it would train on the
    CPU without a word; raise UserError as `check_architectures`.
    """
    problem = _unseen_gpus()
    if problem:
        log.warning("%s; training on the CPU", problem)
    check_architectures()


def _unseen_gpus() -> str:
    """Return why torch sees none of this machine's GPUs; "" if it does, or nobody wants it to."""
    gpus = count_gpus()
    # A list of GPUs, even an empty one, is a wish.
    if not gpus or torch.cuda.is_available() or "CUDA_VISIBLE_DEVICES" in os.environ:
        return ""
    text = f"{gpus} NVIDIA GPU(s), and torch {torch.__version__}"
    if torch.version.cuda is None:
        return f"{text} is a build without CUDA: install another (docs/one-gpu.md)"
    driver = pynvml.nvmlSystemGetDriverVersion()
    major, thousandths = divmod(pynvml.nvmlSystemGetCudaDriverVersion_v2(), 1000)
    return (
        f"{text} is built for CUDA {torch.version.cuda}, and driver {driver} for CUDA "
        f"{major}.{thousandths // 10}: update the driver, or install a torch of an older CUDA "
        "(docs/one-gpu.md)"
    )


def check_architectures() -> None:
    """Raise UserError if this torch build has no code for a GPU that it sees."""
    for index in range(torch.cuda.device_count()):
        check_architecture(
            f"GPU {index} ({torch.cuda.get_device_name(index)})",
            capability=torch.cuda.get_device_capability(index),
            built_for=torch.cuda.get_arch_list(),
        )


def check_checkpoints(folder: Path, parameters: int) -> None:
    """Raise as `check_disk` does unless two checkpoints fit: the last stays until the next is."""
    checkpoint = 3 * 4 * parameters  # bytes: weights and two moments in fp32
    check_disk(folder, needed=2 * checkpoint, purpose="two checkpoints")


def check_architecture(name: str, capability: tuple[int, int], built_for: list[str]) -> None:
    """Raise UserError if this torch build has no code for the GPU, e.g. CUDA 12.8 for a V100.

    Machine code (sm) runs on its own and later minor versions, PTX (compute) on anything later;
    with an "a" either runs on its own version only, with an "f" as sm.
    https://docs.nvidia.com/cuda/cuda-compiler-driver-nvcc/index.html#gpu-feature-list

    Args:
        name: of the GPU, for the error.
        capability: of the GPU, such as (8, 0).
        built_for: torch.cuda.get_arch_list(), such as ["sm_80", "sm_90a", "compute_90"].
    """
    for architecture in built_for:
        parts = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", architecture)
        if parts is None:  # ROCm's names: let torch judge
            return
        kind, major, minor, suffix = parts.groups()
        version = int(major), int(minor)
        if version == capability:
            return
        is_ptx = kind == "compute" and suffix == ""
        is_same_major = version[0] == capability[0]
        runs_on_later = suffix != "a" and (is_ptx or is_same_major)
        if version < capability and runs_on_later:
            return
    raise UserError(
        f"{name} is sm_{capability[0]}{capability[1]}, and torch {torch.__version__} has code for "
        f"{' '.join(built_for) or 'no GPU'} only",
        cure="take another torch build (docs/one-gpu.md; in an image: cluster/Dockerfile)",
    )


def count_gpus() -> int:
    """Return the number of this machine's GPUs; 0 without NVIDIA's driver."""
    with contextlib.suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        return pynvml.nvmlDeviceGetCount()
    return 0


def checkpoint_folder(storage: Mapping[str, Any]) -> Path:
    """Return where a checkpoint is written first: mounted storage, or a folder to upload from."""
    if storage.get("type") == "shared_fs":
        return Path(constants.SHARED_FS_CONTAINER_PATH)
    if storage.get("type") == "directory":
        return Path(storage["container_path"])
    return Path(tempfile.gettempdir())


def check_disk(folder: Path, needed: int, purpose: str) -> None:
    """Raise UserError if `folder` is not writable, Unavailable if `needed` bytes are not free."""
    # It may be created later: the nearest folder above it is on the same disk.
    folder = folder.absolute()
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise UserError(
            f"{purpose} cannot be written there", key=str(folder), cure="set another folder"
        )
    free = shutil.disk_usage(existing).free
    if free < needed:
        raise Unavailable(
            f"{free / GIB:.2f} GiB are free of the {needed / GIB:.2f} that {purpose} may take",
            key=str(folder),
            cure="free space or set another folder",
        )


def check_collectives(device: torch.device, seconds: float = 120) -> None:
    """Run a tiny all-reduce over all ranks (NCCL on GPUs, gloo on CPUs). Collective.

    Uses a group of its own, whose time-out also ends the threads that wait for a lost rank; the
    default group's is half an hour, before which the process could not exit. Raises Unavailable if
    it takes more than `seconds`, or its result is wrong.
    """
    if not torch.distributed.is_initialized():
        return
    backend = torch.distributed.get_backend()
    size = torch.distributed.get_world_size()
    total = torch.ones(1, device=device)
    deadline = time.monotonic() + seconds
    try:
        group = torch.distributed.new_group(timeout=datetime.timedelta(seconds=seconds))
        work = torch.distributed.all_reduce(total, group=group, async_op=True)
        while not work.is_completed() and time.monotonic() < deadline:
            time.sleep(0.005)
        # NCCL's wait() would block the stream, not this thread.
        if backend == "nccl" and not work.is_completed():
            raise RuntimeError("time is up")
        work.wait()
        if total.item() != size:
            raise RuntimeError(f"its sum was {total.item()}")
    except RuntimeError as error:
        raise Unavailable(
            f"no all-reduce of {size} ranks over {backend} in {seconds:.0f} s "
            f"({first_line(error)})",
            cure="check the network between the machines; NCCL_DEBUG=INFO shows where it stands",
        ) from None
    torch.distributed.destroy_process_group(group)
