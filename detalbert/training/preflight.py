"""Checks before any work: what would end a task an hour later ends it now, in one line.

`check` is for one process of each machine and touches no GPU memory; `check_collectives` is for
all ranks, once their process group is up. Both raise UserError, whose text says what to do.
"""

import contextlib
import datetime
import os
import re
import shutil
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import huggingface_hub
import torch
from determined.common import constants
from transformers import MODEL_FOR_QUESTION_ANSWERING_MAPPING, AutoConfig

from detalbert.errors import Unavailable, UserError, first_line
from detalbert.hub import find_local, hub_error, is_checkpoint, looks_like_path
from detalbert.settings.hparams import DataConfig, HParams, parse_data_config
from detalbert.squad import sources

GIB = 2**30
WEIGHT_FILES = ("*.safetensors", "pytorch_model*.bin")
OFFICIAL = sources.OFFICIAL_SHA256


def check(config: Mapping[str, Any], hparams: HParams, gpu_uuids: Sequence[str]) -> None:
    """Whether this machine can run the experiment: its GPUs, the data, the disks.

    Args: config: the experiment config; gpu_uuids: the GPUs that the cluster gave this container.
    Raises UserError for the first thing that cannot work.
    """
    data = parse_data_config(config["data"])
    check_gpus(gpu_uuids)
    check_source(data, "train")
    check_source(data, "validation")
    generated = data.train == data.validation == "generated"
    room = GIB // 16 if generated else GIB
    check_room(config, gpu_uuids, count_parameters(hparams), Path(data.cache_dir), room)


def check_gpus(gpu_uuids: Sequence[str]) -> None:
    """Refuse a torch build that does not see or fit the GPUs that the cluster gave."""
    if gpu_uuids:
        check_build(len(gpu_uuids), torch.cuda.device_count(), torch.__version__)
        for index in range(len(gpu_uuids)):
            name, capability = gpu_name(index), torch.cuda.get_device_capability(index)
            check_architecture(name, capability, torch.cuda.get_arch_list())


def check_room(
    config: Mapping[str, Any],
    gpu_uuids: Sequence[str],
    parameters: int,
    cache: Path,
    cache_bytes: int,
) -> None:
    """Refuse GPUs without memory for the model, and full disks."""
    if gpu_uuids:
        check_gpu_memory(gpu_uuids, parameters)
    check_disk(cache, cache_bytes, "the feature cache")
    # Weights and the optimizer's two moments in fp32; the last checkpoint stays until the next is.
    storage = checkpoint_folder(config.get("checkpoint_storage") or {})
    check_disk(storage, 2 * 12 * parameters, "two checkpoints")


def gpu_name(index: int) -> str:
    return f"GPU {index} ({torch.cuda.get_device_name(index)})"


def check_build(given: int, seen: int, version: str) -> None:
    """Refuse a torch that does not see the container's GPUs: it would train on the CPU."""
    if seen < given:
        raise UserError(
            f"torch {version} sees {seen} of the container's {given} GPUs: a CPU build, or a CUDA "
            "newer than the machine's driver; take another image (cluster/Dockerfile)"
        )


def check_architecture(name: str, capability: tuple[int, int], built_for: list[str]) -> None:
    """Refuse a GPU that this torch build has no code for, e.g. a V100 and a CUDA 12.8 build.

    Args: capability: of the GPU, (7, 0) for a V100; built_for: torch.cuda.get_arch_list(), such as
    ["sm_80", "sm_90a", "compute_90"]. Machine code (sm) runs on its own and later minor versions,
    PTX (compute) on anything later; with an "a" either runs on its own version alone, with an "f"
    on its own and later minor versions.
    https://docs.nvidia.com/cuda/cuda-compiler-driver-nvcc/index.html#gpu-feature-list
    """
    for architecture in built_for:
        found = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", architecture)
        if found is None:  # ROCm's names: let torch judge
            return
        built = int(found[2]), int(found[3])
        if found[4] == "a":
            runs = built == capability
        elif found[1] == "compute" and not found[4]:
            runs = built <= capability
        else:
            runs = built <= capability and built[0] == capability[0]
        if runs:
            return
    raise UserError(
        f"{name} is sm_{capability[0]}{capability[1]}, and this torch {torch.__version__} has code "
        f"for {' '.join(built_for) or 'no GPU'} only; take an image with another torch build "
        "(cluster/Dockerfile; for a V100 a CUDA 12.6 build)"
    )


def check_gpu_memory(
    gpu_uuids: Sequence[str], parameters: int, parts: int = 1, gathered: int = 0
) -> None:
    """Refuse GPUs with less free memory than the model's states alone take.

    Weights, gradients and two moments in fp32 are 16 bytes a parameter; CUDA itself and the
    smallest activations about 1 GiB. Read from nvidia-smi: asking CUDA would take memory on each.

    Args: parts: that the states are split into, one on each GPU; gathered: bytes of the largest
    layer, where it is whole on each for a moment.
    """
    needed = 16 * parameters // parts + gathered + GIB
    share = f"1/{parts} of " if parts > 1 else ""
    for uuid, free, total in gpu_memory():
        if uuid in gpu_uuids and free < needed:
            raise Unavailable(
                f"GPU {uuid}: {free / GIB:.1f} of {total / GIB:.1f} GiB are free, and {share}a "
                f"model of {parameters / 1e6:.0f} M parameters takes {needed / GIB:.1f} GiB before "
                "its first activation; end what holds the GPU, or take a larger one"
            )


def gpu_memory() -> list[tuple[str, int, int]]:
    """(UUID, free bytes, total bytes) of every GPU that nvidia-smi lists; none without it."""
    query = ["nvidia-smi", "--query-gpu=uuid,memory.free,memory.total"]
    try:
        done = subprocess.run(
            [*query, "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [[field.strip() for field in line.split(",")] for line in done.stdout.splitlines()]
    # "[N/A]" where a GPU is split into parts, which have UUIDs of their own
    return [(u, int(f) << 20, int(t) << 20) for u, f, t in rows if f.isdigit() and t.isdigit()]


def check_source(data: DataConfig, split: str) -> None:
    """Refuse `data.train` or `data.validation` when it is not there; nothing is downloaded."""
    name, key = getattr(data, split), f"data.{split}"
    if name == "generated" or (name in OFFICIAL and (Path(data.cache_dir) / name).is_file()):
        return
    if name in OFFICIAL and not Path(name).exists():
        reach(f"{sources.OFFICIAL_URL}/{name}", key)
    else:
        check_place(name, key, (".json",))


def check_place(name: str, key: str, suffixes: tuple[str, ...]) -> None:
    """Refuse a file, a folder or a hub data set that is not there; nothing is downloaded.

    Args: name: what the config's `key` says; suffixes: see `looks_like_path`.
    """
    path = Path(name)
    if path.exists():
        if not os.access(path, os.R_OK):
            raise UserError(f"{key}: {path} cannot be read; give this task's user access")
    elif looks_like_path(name, suffixes):
        raise UserError(
            f"{key}: {path}: no such file in this container; mount it (bind_mounts), or "
            f"set {key} to where it is"
        )
    elif not offline():
        try:
            huggingface_hub.HfApi().dataset_info(name, timeout=20)
        except Exception as error:  # whatever HTTP and the hub's client raise
            raise hub_error(error)(f"{key}: {name!r} is no file, {_reason(error)}") from None


def reach(url: str, key: str) -> None:
    """Ask for the headers of `url`, no more."""
    try:
        urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=20).close()
    except OSError as error:
        raise Unavailable(
            f"{key}: {url} cannot be reached from this container: {error}; fetch it by hand and "
            f"set {key} to its path"
        ) from None


def offline() -> bool:
    """Whether the hub is not to be asked; what its cache holds is found out when it is loaded."""
    return huggingface_hub.constants.HF_HUB_OFFLINE


def count_parameters(hparams: HParams) -> int:
    """Parameters of the model, without its weights; 0 for a config that builds no model, of which
    `models.build_model` says why. Raises UserError for a model that is not there."""
    if hparams.model is None:
        keys = {"model_type": "albert", **(hparams.model_config or {})}
        with contextlib.suppress(ValueError, TypeError, KeyError):
            return _count(AutoConfig.for_model(keys.pop("model_type"), **keys))
        return 0
    path = Path(find_local(hparams.model))
    weights = is_checkpoint(hparams.model) or any(list(path.glob(name)) for name in WEIGHT_FILES)
    if path.is_dir() and not weights:
        raise UserError(
            f"hyperparameters.model: {hparams.model!r} has no weights in this container; "
            ".detignore may have kept them out of the upload"
        )
    try:
        return _count(AutoConfig.from_pretrained(find_local(hparams.model)))
    except (OSError, ValueError, KeyError) as error:
        raise hub_error(error)(
            f"hyperparameters.model: {hparams.model!r} is no folder here, {_reason(error)}"
        ) from None


def _count(config: Any) -> int:
    if type(config) not in MODEL_FOR_QUESTION_ANSWERING_MAPPING:
        return 0
    # The class first: under a meta device transformers cannot import its module with torch 2.6.
    model_class = MODEL_FOR_QUESTION_ANSWERING_MAPPING[type(config)]
    with torch.device("meta"):
        model = model_class(config)
    return sum(parameter.numel() for parameter in model.parameters())


def _reason(error: BaseException) -> str:
    return f"and the hub does not give it: {first_line(error)}"


def checkpoint_folder(storage: Mapping[str, Any]) -> Path:
    """Where a checkpoint is written first: the mounted storage, or a temporary folder that is
    uploaded from."""
    if storage.get("type") == "shared_fs":
        return Path(constants.SHARED_FS_CONTAINER_PATH)
    if storage.get("type") == "directory":
        return Path(storage["container_path"])
    return Path(tempfile.gettempdir())


def check_disk(folder: Path, needed: int, purpose: str) -> None:
    """Refuse a folder that cannot be written, or has less than `needed` bytes free."""
    folder = folder.absolute()
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise UserError(f"{folder}: {purpose} cannot be written there; set another folder")
    free = shutil.disk_usage(there).free
    if free < needed:
        raise Unavailable(
            f"{folder}: {free / GIB:.2f} GiB are free of the {needed / GIB:.2f} that {purpose} may "
            "take; free space or set another folder"
        )


def check_collectives(device: torch.device, seconds: float = 120) -> None:
    """One tiny all-reduce over all ranks (NCCL on GPUs, gloo on CPUs); every rank must call it.

    In a group of its own, whose time-out also ends the threads that wait for a lost rank; with the
    default group's half an hour the process could not exit before.
    Raises UserError when it is not done in `seconds`, or is wrong.
    """
    if not torch.distributed.is_initialized():
        return
    backend, size = torch.distributed.get_backend(), torch.distributed.get_world_size()
    hint = "check the network between the machines; NCCL_DEBUG=INFO shows where it stands"
    total = torch.ones(1, device=device)
    deadline = time.monotonic() + seconds
    try:
        group = torch.distributed.new_group(timeout=datetime.timedelta(seconds=seconds))
        work = torch.distributed.all_reduce(total, group=group, async_op=True)
        while not work.is_completed() and time.monotonic() < deadline:
            time.sleep(0.005)
        if backend == "nccl" and not work.is_completed():
            raise RuntimeError("time is up")  # its wait() would block the stream, not this thread
        work.wait()
    except RuntimeError as error:
        reason = first_line(error)
        raise Unavailable(
            f"no all-reduce of {size} ranks over {backend} in {seconds:.0f} s ({reason}); {hint}"
        ) from None
    if total.item() != size:
        raise Unavailable(
            f"the all-reduce of {size} ones over {backend} gave {total.item()}; {hint}"
        )
    torch.distributed.destroy_process_group(group)
