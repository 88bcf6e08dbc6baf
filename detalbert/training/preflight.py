"""Checks before any work: faults that would end a task an hour later end it now, in one line.

`check` is for one process per machine and uses no GPU memory; `check_device` is for each rank, and
`check_collectives` for all of them, once their process group exists.
"""

import contextlib
import datetime
import logging
import os
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
ANOTHER = "take another torch build (docs/one-gpu.md; in an image: cluster/Dockerfile)"
log = logging.getLogger(__name__)


def check(cache_dir: str, gpu_uuids: Sequence[str]) -> None:
    """Check GPUs and the cache's disk of this machine.

    Args:
        cache_dir: of the experiment's data.
        gpu_uuids: of the container's GPUs.

    Raises:
        Unavailable: the disk is too small.
        UserError: for another fault; torch would train on the CPU if it sees no GPU.
    """
    seen = torch.cuda.device_count() if gpu_uuids else 0
    if seen < len(gpu_uuids):
        raise UserError(
            f"torch {torch.__version__} sees {seen} of the container's {len(gpu_uuids)} GPUs: "
            "a CPU build, or a CUDA newer than the machine's driver",
            cure=ANOTHER,
        )
    check_disk(Path(cache_dir), needed=GIB, purpose="the cache")


def check_local_gpus() -> None:
    """Log a warning if this machine has GPUs that torch does not see, so that it would train on the
    CPU without a word.
    """
    gpus = 0
    with contextlib.suppress(pynvml.NVMLError):  # raised where there is no driver
        pynvml.nvmlInit()
        gpus = pynvml.nvmlDeviceGetCount()
    # A list of GPUs, even an empty one, is a wish.
    if gpus and "CUDA_VISIBLE_DEVICES" not in os.environ and not torch.cuda.is_available():
        log.warning(
            "NVIDIA GPUs: %d, and torch %s (CUDA: %s) sees none: a build without CUDA, or an old "
            "driver (docs/one-gpu.md); training on the CPU",
            gpus,
            torch.__version__,
            torch.version.cuda,
        )


def check_device(device: torch.device) -> None:
    """Raise UserError if this torch build has no code for the device, e.g. CUDA 12.8 for a V100."""
    try:
        torch.ones(1, device=device).add_(1).item()
    except RuntimeError as error:
        raise UserError(
            f"torch {torch.__version__} does not run there ({first_line(error)})",
            key=str(device),
            cure=ANOTHER,
        ) from None


def check_checkpoints(folder: Path, parameters: int) -> None:
    """Raise as `check_disk` does unless two checkpoints fit: the last stays until the next is."""
    checkpoint = 3 * 4 * parameters  # bytes: weights and two moments in fp32
    check_disk(folder, needed=2 * checkpoint, purpose="two checkpoints")


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
    it takes more than `seconds`.
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
    except RuntimeError as error:
        raise Unavailable(
            f"no all-reduce of {size} ranks over {backend} in {seconds:.0f} s "
            f"({first_line(error)})",
            cure="check the network between the machines; NCCL_DEBUG=INFO shows where it stands",
        ) from None
    torch.distributed.destroy_process_group(group)
