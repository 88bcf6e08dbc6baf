"""The checks at the start of a task: each refuses what it should, in one line, and nothing else."""

import contextlib
import datetime
import multiprocessing
import os
import re
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pynvml
import pytest
import torch

import train
from detalbert.errors import NotFinite, Unavailable, UserError
from detalbert.training import preflight
from detalbert.training.local import Ranks, lost_rank


@pytest.mark.parametrize(("hidden", "lines"), [(False, 1), (True, 0)])
def test_gpus_that_torch_does_not_see_are_told(hidden, lines, monkeypatch, caplog):
    """Unless the user hides them."""
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: 2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if hidden:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    preflight.check_local_gpus()
    assert len(caplog.messages) == lines
    for line in caplog.messages:
        assert "NVIDIA GPUs: 2, and torch" in line
        assert line.endswith("; training on the CPU")


@pytest.mark.parametrize("seen", [0, 1, 2])
def test_torch_sees_all_gpus_of_a_container(seen, monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: seen)
    preflight.check(str(tmp_path), gpu_uuids=[])
    missing = pytest.raises(UserError, match=f"sees {seen} of the container's 2 GPUs: a CPU build")
    with missing if seen < 2 else contextlib.nullcontext():
        preflight.check(str(tmp_path), gpu_uuids=["a", "b"])


def test_a_device_that_torch_has_no_code_for(monkeypatch):
    preflight.check_device(torch.device("cpu"))
    no_kernel = RuntimeError("CUDA error: no kernel image is available for execution\nmore")
    monkeypatch.setattr(torch, "ones", Mock(side_effect=no_kernel))
    with pytest.raises(UserError, match=r"cuda:1: torch .* no kernel image .*docs/one-gpu.md"):
        preflight.check_device(torch.device("cuda", 1))


def test_disks(tmp_path):
    preflight.check_disk(tmp_path / "not" / "yet", 1 << 20, "the feature cache")
    assert not (tmp_path / "not").exists()
    problem = r": \d{1,6}\.\d\d GiB are free of the 1048576.00 that two checkpoints may"
    with pytest.raises(UserError, match=problem):
        preflight.check_disk(tmp_path, 2**50, "two checkpoints")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="the feature cache cannot be written"):
        preflight.check_disk(tmp_path / "file" / "below", 1, "the feature cache")


def be_rank(rank, store, behaviour, faults):
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
    fault = None
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
    ("behaviour", "status", "problem"),
    [("well", 0, "None"), ("absent", 4, LATE), ("late", 4, LATE), ("gone", 5, GONE)],
)
def test_an_all_reduce_of_two_ranks(behaviour, status, problem, tmp_path, fork):
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


def test_another_error_is_no_lost_rank():
    assert lost_rank(RuntimeError("size mismatch")) is None


@pytest.mark.parametrize("kind", [UserError, Unavailable, NotFinite])
def test_an_error_of_one_rank_is_raised_on_all(kind):
    other = kind("its line")
    group = SimpleNamespace(rank=1, local_rank=1, allgather=lambda own: [other, own])
    for on_ranks in (Ranks(group).on_all, Ranks(group).on_chief):
        with pytest.raises(UserError, match="^its line$") as raised:
            on_ranks(lambda: 3)
        assert type(raised.value) is kind
        assert raised.value.on_all_ranks


def test_where_a_checkpoint_is_written_first():
    folders = {
        "shared_fs": Path("/determined_shared_fs"),
        "directory": Path("/mnt/mine"),
        "s3": Path(tempfile.gettempdir()),
    }
    for kind, folder in folders.items():
        storage = {"type": kind, "container_path": "/mnt/mine", "host_path": "/tmp"}
        assert preflight.checkpoint_folder(storage) == folder
