"""The checks at the start of a task: each refuses what it should, in one line, and nothing else."""

import datetime
import multiprocessing
import os
import re
import shutil
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pynvml
import pytest
import torch

import train
from detalbert.errors import NotFinite, Unavailable, UserError
from detalbert.training import preflight
from detalbert.training.local import Ranks, lost_rank

# What torch.cuda.get_arch_list() gives in the Linux builds named.
CU126 = ["sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90"]
CU128 = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120"]
V100, T4, A100, L4, H100, B200 = (7, 0), (7, 5), (8, 0), (8, 9), (9, 0), (10, 0)
RUNS = [
    (V100, CU126),
    (T4, CU126),
    (A100, CU126),
    (L4, CU126),
    (H100, CU126),
    (B200, ["sm_80", "compute_90"]),
    (H100, ["sm_90a"]),
    ((10, 3), ["sm_100f"]),
    (H100, ["gfx90a"]),  # ROCm is not judged
]
LACKING = [
    (V100, CU128),
    (B200, CU126),
    (A100, ["sm_86"]),
    (A100, ["sm_70"]),
    (V100, []),
    (V100, ["compute_80"]),
    ((10, 3), ["sm_100a"]),
    ((9, 5), ["compute_90a"]),
    ((12, 0), ["compute_100f"]),
]


def test_a_gpu_needs_code_of_its_architecture() -> None:
    for gpu, built_for in RUNS:
        preflight.check_architecture("GPU 0", gpu, built_for)
    for (major, minor), built_for in LACKING:
        with pytest.raises(UserError, match=f"GPU 0 is sm_{major}{minor}.*cluster/Dockerfile"):
            preflight.check_architecture("GPU 0", (major, minor), built_for)


def test_every_gpu_is_held_against_the_build(monkeypatch: pytest.MonkeyPatch) -> None:
    """The image of the configs on V100s, and a newer build on a machine with one V100."""
    gpus = [T4, V100]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(gpus))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "Tesla")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: gpus[index])
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: CU126)
    preflight.check_gpus(["GPU-a", "GPU-b"])
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: CU128)
    with pytest.raises(UserError, match=r"GPU 1 \(Tesla\) is sm_70.*code for sm_75 .*one-gpu.md"):
        preflight.check_gpus(["GPU-a", "GPU-b"])


FREE_MIB = {"GPU-a": 15_000, "GPU-b": 2_000}  # of 16,160


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have NVML list those of FREE_MIB."""
    names = list(FREE_MIB)

    def memory_of(gpu: str) -> SimpleNamespace:
        return SimpleNamespace(free=FREE_MIB[gpu] << 20, total=16_160 << 20)

    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: len(names))
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", names.__getitem__)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetUUID", str)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", memory_of)


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(
    "built_for, words",
    [
        (None, "2 NVIDIA GPU(s), and torch {} is a build without CUDA"),
        ("13.2", "torch {} is built for CUDA 13.2, and driver 550.54 for CUDA 12.4: update"),
    ],
    ids=["cpu build", "old driver"],
)
def test_gpus_that_torch_does_not_see_are_told(
    built_for: str | None,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.version, "cuda", built_for)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(pynvml, "nvmlSystemGetDriverVersion", lambda: "550.54")
    monkeypatch.setattr(pynvml, "nvmlSystemGetCudaDriverVersion_v2", lambda: 12_040)
    preflight.check_local_gpus()
    (record,) = caplog.records
    assert words.format(torch.__version__) in record.getMessage()
    assert record.getMessage().endswith("; training on the CPU")

    # Who hides them knows.
    caplog.clear()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    preflight.check_local_gpus()
    assert not caplog.records


@pytest.mark.usefixtures("two_gpus")
def test_a_local_gpu_needs_code_of_its_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "GTX 1080")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (6, 1))
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: CU128)
    with pytest.raises(UserError, match=r"GPU 0 \(GTX 1080\) is sm_61.*docs/one-gpu.md"):
        preflight.check_local_gpus()


def test_without_nvml_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Mock(side_effect=pynvml.NVMLError(pynvml.NVML_ERROR_UNKNOWN))
    monkeypatch.setattr(pynvml, "nvmlInit", broken)
    assert preflight.count_gpus() == 0


def test_a_disk_may_be_filled_to_its_last_byte(monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1 << 20))
    preflight.check_disk(tmp_path, 1 << 20, "a checkpoint")
    with pytest.raises(UserError, match="that a checkpoint may take"):
        preflight.check_disk(tmp_path, (1 << 20) + 1, "a checkpoint")


def test_disks(tmp_path: Path) -> None:
    preflight.check_disk(tmp_path / "not" / "yet", 1 << 20, "the feature cache")
    assert not (tmp_path / "not").exists()
    problem = r": \d{1,6}\.\d\d GiB are free of the 1048576.00 that two checkpoints may"
    with pytest.raises(UserError, match=problem):
        preflight.check_disk(tmp_path, 2**50, "two checkpoints")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="the feature cache cannot be written"):
        preflight.check_disk(tmp_path / "file" / "below", 1, "the feature cache")


def test_checkpoints_lie_where_the_storage_is_mounted(tmp_path: Path) -> None:
    mounted = preflight.checkpoint_folder({"type": "shared_fs", "host_path": "/anywhere"})
    assert str(mounted) == "/determined_shared_fs"
    directory = {"type": "directory", "container_path": str(tmp_path)}
    assert preflight.checkpoint_folder(directory) == tmp_path
    assert preflight.checkpoint_folder({"type": "s3", "bucket": "b"}).is_dir()


def test_check_passes_here_and_leaves_nothing(tmp_path: Path) -> None:
    cache = str(tmp_path / "cache")
    preflight.check(cache, gpu_uuids=[])
    with pytest.raises(UserError, match="sees 0 of the container's 1 GPUs"):
        preflight.check(cache, gpu_uuids=["GPU-a"])
    assert list(tmp_path.iterdir()) == []
    preflight.check_collectives(torch.device("cpu"))  # one process needs no network


def be_rank(rank: int, store: Path, behaviour: str, faults: Any) -> None:
    """One of two processes, the second of which behaves: well, or is absent, late or gone."""
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=2
    )
    if behaviour != "well" and rank == 1:
        if behaviour == "gone":
            os._exit(0)
        if behaviour == "late":
            torch.distributed.new_group(timeout=datetime.timedelta(seconds=1))
        time.sleep(1200)
    fault: UserError | None = None
    seconds = 120 if behaviour == "well" else 1
    try:
        if behaviour == "gone":
            torch.distributed.all_reduce(torch.ones(1))
        preflight.check_collectives(torch.device("cpu"), seconds=seconds)
    except UserError as error:
        fault = error
    except RuntimeError as error:
        fault = lost_rank(error)
    faults.put(str(fault))
    if fault:
        train.leave(fault.status)


LATE = r"no all-reduce of 2 ranks over gloo in 1 s \(.*\); check the network"
GONE = r"another rank is gone \([^[].*\); its lines say why$"


@pytest.mark.parametrize(
    "behaviour, status, problem",
    [("well", 0, "None"), ("absent", 4, LATE), ("late", 4, LATE), ("gone", 5, GONE)],
)
def test_an_all_reduce_of_two_ranks(
    behaviour: str, status: int, problem: str, tmp_path: Path, fork: None
) -> None:
    context = multiprocessing.get_context("fork")
    faults = context.SimpleQueue()
    ranks = []
    for rank in range(2):
        arguments = (rank, tmp_path / "store", behaviour, faults)
        ranks.append(context.Process(target=be_rank, args=arguments))
    for process in ranks:
        process.start()
    ranks[0].join(600)
    assert re.match(problem, faults.get())
    assert ranks[0].exitcode == status
    if behaviour == "well":
        ranks[1].join(600)
        assert faults.get() == "None"
        assert ranks[1].exitcode == 0
    ranks[1].kill()


def test_another_error_is_no_lost_rank() -> None:
    assert lost_rank(RuntimeError("size mismatch")) is None


@pytest.mark.parametrize("kind", [UserError, Unavailable, NotFinite])
def test_an_error_of_one_rank_is_raised_on_all(kind: type[UserError]) -> None:
    other = kind("its line")
    group: Any = SimpleNamespace(rank=1, local_rank=1, allgather=lambda own: [other, own])
    for on_ranks in (Ranks(group).on_all, Ranks(group).on_chief):
        with pytest.raises(UserError, match="^its line$") as raised:
            on_ranks(lambda: 3)
        assert type(raised.value) is kind
        assert raised.value.on_all_ranks


def test_work_is_done_on_the_ranks_that_are_named() -> None:
    calls = []

    def work(ranks_of_work: str, rank: int) -> int:
        calls.append(ranks_of_work)
        return rank

    for rank, local_rank in [(0, 0), (8, 0), (9, 1)]:
        group: Any = SimpleNamespace(
            rank=rank,
            local_rank=local_rank,
            allgather=lambda own: [own],
            broadcast=lambda own: own,
        )
        ranks = Ranks(group)
        assert ranks.on_all(work, "all", rank=rank) == rank
        assert ranks.on_chief(work, "chief", rank=rank) == (0 if rank == 0 else None)
    assert calls == ["all", "chief", "all", "all"]
