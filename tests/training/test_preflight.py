"""The checks at the start of a task: each refuses what it should, in one line, and nothing else."""

import os
import pathlib
import re
import socket
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from detalbert.engine.memory import Memory
from detalbert.engine.sizes import find_sizes
from detalbert.errors import UserError
from detalbert.settings.hparams import DataConfig, HParams, parse_hparams
from detalbert.squad import sources
from detalbert.training import preflight
from tests.conftest import TINY, Script
from tests.fakes.http import AnswerServer

# What torch.cuda.get_arch_list() gives in the Linux builds named.
CU126 = ["sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90"]
CU128 = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120"]
V100, T4, A100, L4, H100, B200 = (7, 0), (7, 5), (8, 0), (8, 9), (9, 0), (10, 0)


@pytest.mark.parametrize("gpu", [V100, T4, A100, L4, H100])
def test_an_older_cuda_build_runs_on_gpus_since_volta(gpu: tuple[int, int]) -> None:
    preflight.check_architecture("GPU 0", gpu, CU126)


LACKING = [(V100, CU128), (B200, CU126), (A100, ["sm_86"]), (A100, ["sm_70"]), (V100, [])]
LACKING += [(V100, ["compute_80"]), ((10, 3), ["sm_100a"]), ((9, 5), ["compute_90a"])]


@pytest.mark.parametrize("gpu, built_for", [*LACKING, ((12, 0), ["compute_100f"])])
def test_a_gpu_without_code_is_refused(gpu: tuple[int, int], built_for: list[str]) -> None:
    with pytest.raises(UserError, match=f"GPU 0 is sm_{gpu[0]}{gpu[1]}.*cluster/Dockerfile"):
        preflight.check_architecture("GPU 0", gpu, built_for)


def test_ptx_and_suffixed_architectures_count() -> None:
    preflight.check_architecture("GPU 0", B200, ["sm_80", "compute_90"])
    preflight.check_architecture("GPU 0", H100, ["sm_90a"])
    preflight.check_architecture("GPU 0", (10, 3), ["sm_100f"])
    preflight.check_architecture("GPU 0", (9, 0), ["gfx90a"])  # ROCm is not judged


def test_every_gpu_is_held_against_the_build(monkeypatch: pytest.MonkeyPatch) -> None:
    """The image of the configs on V100s, and a newer build on a machine with one V100."""
    gpus = [T4, V100]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(gpus))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "Tesla")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: gpus[index])
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: CU126)
    preflight.check_gpus(["GPU-a", "GPU-b"])
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: CU128)
    with pytest.raises(UserError, match=r"GPU 1 \(Tesla\) is sm_70.*code for sm_75 .*CUDA 12.6"):
        preflight.check_gpus(["GPU-a", "GPU-b"])


def test_a_build_that_sees_no_gpu_is_refused() -> None:
    preflight.check_build(8, 8, "2.6.0+cu126")
    with pytest.raises(UserError, match="sees 0 of the container's 8 GPUs"):
        preflight.check_build(8, 0, "2.6.0+cpu")


@pytest.fixture
def nvidia_smi(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An nvidia-smi that prints these lines."""

    def install(*lines: str, status: int = 0) -> None:
        script = tmp_path / "nvidia-smi"
        quoted = "".join(f"echo '{line}'\n" for line in lines)
        script.write_text(f"#!/bin/sh\n{quoted}exit {status}\n")
        script.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    return install


def test_a_gpu_that_is_full_is_refused(nvidia_smi: Any, fork: None) -> None:
    nvidia_smi("GPU-a, 15000, 16160", "GPU-b, 2000, 16160", "GPU-c, [N/A], [N/A]")
    hparams = HParams(max_tokens_per_forward=1024)
    memory = Memory(states=4 * 2**30, gathered=0, head=0, per_token=2**20)  # 5.5 and 1 GiB
    preflight.check_gpu_memory(["GPU-a", "GPU-c"], memory, hparams, 223_000_000)
    with pytest.raises(UserError, match=r"GPU-b: 2.0 of 15.8 GiB.*223 M.*takes 5.5 .* and 1.0 mor"):
        preflight.check_gpu_memory(["GPU-a", "GPU-b"], memory, hparams, 223_000_000)
    small = memory._replace(states=0)  # 2,000 MiB less 1.5 GiB: 464 tokens
    with pytest.raises(UserError, match="max_tokens_per_forward to 464 or less"):
        preflight.check_gpu_memory(["GPU-b"], small, hparams, 12_000_000)
    auto = HParams(max_tokens_per_forward="auto")  # one window of 384 is the least
    preflight.check_gpu_memory(["GPU-b"], small, auto, 12_000_000)


def test_memory_is_not_judged_without_nvidia_smi(nvidia_smi: Any, fork: None) -> None:
    nvidia_smi("Failed to initialize NVML", status=9)
    assert preflight.gpu_memory() == []
    preflight.check_gpu_memory(["GPU-a"], Memory(1e15, 0, 0, 1), HParams(), 10**12)


def data(**values: Any) -> DataConfig:
    return DataConfig(**{"train": "generated", "validation": "generated", **values})


def test_data_that_is_there_passes(tmp_path: pathlib.Path) -> None:
    own, official = tmp_path / "own.json", tmp_path / "train-v2.0.json"
    own.write_text("{}")
    official.write_text("{}")  # as if downloaded before
    preflight.check_source(data(), "train")
    preflight.check_source(data(train=str(own)), "train")
    preflight.check_source(data(train=official.name, cache_dir=str(tmp_path)), "train")


def test_a_missing_file_is_refused() -> None:
    with pytest.raises(UserError, match="data.validation: /no/dev.json: no such file.*bind_mounts"):
        preflight.check_source(data(validation="/no/dev.json"), "validation")


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[AnswerServer]:
    """An HTTP server that has the official training file and nothing else."""
    with AnswerServer(lambda r: (200 if r.path == "/train-v2.0.json" else 404, b"")) as server:
        monkeypatch.setattr(sources, "OFFICIAL_URL", server.url)
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        yield server


def test_an_official_file_is_asked_for_not_fetched(site: Any, tmp_path: pathlib.Path) -> None:
    config = data(
        train="train-v2.0.json", validation="dev-v2.0.json", cache_dir=str(tmp_path / "none")
    )
    preflight.check_source(config, "train")
    assert [(r.method, r.path) for r in site.asked] == [("HEAD", "/train-v2.0.json")]
    with pytest.raises(UserError, match=r"data.validation: .*dev-v2.0.json cannot be reached"):
        preflight.check_source(config, "validation")
    assert list(tmp_path.iterdir()) == []


def test_a_data_set_of_the_hub_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight.huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(preflight.huggingface_hub.HfApi, "dataset_info", refuse)
    with pytest.raises(UserError, match="data.train: 'squod' is no file.*no such data set"):
        preflight.check_source(data(train="squod"), "train")
    monkeypatch.setattr(preflight.huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    preflight.check_source(data(train="squod"), "train")


def refuse(self: Any, name: str, **_: Any) -> None:
    raise ValueError(f"{name}: no such data set")


def test_parameters_are_counted_without_weights() -> None:
    xxlarge = {
        "hidden_size": 4096,
        "num_attention_heads": 64,
        "intermediate_size": 16384,
        "embedding_size": 128,
    }
    assert round(find_sizes(HParams(model_config=xxlarge)).parameters / 1e6) == 206
    tiny = find_sizes(HParams(model="embedded/albert-tiny"))
    assert 260_000 < tiny.parameters < 270_000
    assert find_sizes(HParams(model_config={"model_type": "no-such"})) is None


def test_a_model_that_is_not_there_is_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(UserError, match="'no/such-model' is no folder here"):
        find_sizes(HParams(model="no/such-model"))
    (tmp_path / "config.json").write_text('{"model_type": "albert"}')
    with pytest.raises(UserError, match="has no weights in this container; .detignore"):
        find_sizes(HParams(model=str(tmp_path)))


def test_disks(tmp_path: pathlib.Path) -> None:
    preflight.check_disk(tmp_path / "not" / "yet", 1 << 20, "the feature cache")
    assert not (tmp_path / "not").exists()
    with pytest.raises(UserError, match="GiB are free of the 1048576.00 that two checkpoints may"):
        preflight.check_disk(tmp_path, 2**50, "two checkpoints")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="the feature cache cannot be written"):
        preflight.check_disk(tmp_path / "file" / "below", 1, "the feature cache")


def test_where_checkpoints_go(tmp_path: pathlib.Path) -> None:
    shared = {"type": "shared_fs", "host_path": "/anywhere"}
    assert str(preflight.checkpoint_folder(shared)) == "/determined_shared_fs"
    directory = {"type": "directory", "container_path": str(tmp_path)}
    assert preflight.checkpoint_folder(directory) == tmp_path
    uploaded = preflight.checkpoint_folder({"type": "s3", "bucket": "b"})
    assert uploaded.is_dir()


def cluster_config(folder: pathlib.Path, **values: Any) -> dict[str, Any]:
    storage = {"type": "directory", "container_path": str(folder)}
    sources = {**TINY["data"], "cache_dir": str(folder / "cache"), **values}
    return {**TINY, "data": sources, "checkpoint_storage": storage}


def test_check_passes_here_and_leaves_nothing(tmp_path: pathlib.Path) -> None:
    hparams = parse_hparams(TINY["hyperparameters"])
    preflight.check(cluster_config(tmp_path), hparams, gpu_uuids=[])
    assert list(tmp_path.iterdir()) == []


def test_check_refuses_gpus_that_torch_does_not_see(tmp_path: pathlib.Path) -> None:
    with pytest.raises(UserError, match="sees 0 of the container's 1 GPUs"):
        hparams = parse_hparams(TINY["hyperparameters"])
        preflight.check(cluster_config(tmp_path), hparams, gpu_uuids=["GPU-a"])


RANK = """
import datetime, sys, time, torch
from detalbert.errors import UserError
from detalbert.training import preflight
from train import leave
rank, port, behave = int(sys.argv[1]), sys.argv[2], sys.argv[3]
torch.distributed.init_process_group(
    "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
if behave != "well" and rank == 1:
    if behave == "late":
        torch.distributed.new_group(timeout=datetime.timedelta(seconds=2))
    time.sleep(1200)
try:
    preflight.check_collectives(torch.device("cpu"), seconds=120 if behave == "well" else 2)
except UserError as error:
    print("error:", error)
    leave(2)
print("ok")
"""


def ranks(command: list[str], behave: str) -> list[subprocess.Popen]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    words = [[*command, str(rank), str(port), behave] for rank in range(2)]
    return [subprocess.Popen(each, stdout=subprocess.PIPE, text=True) for each in words]


def test_an_all_reduce_of_two_ranks(script: Script) -> None:
    assert [process.communicate(timeout=600)[0] for process in ranks(script(RANK), "well")] == [
        "ok\n",
        "ok\n",
    ]


@pytest.mark.parametrize("behave", ["absent", "late"])
def test_a_rank_that_does_not_answer_is_noticed(behave: str, script: Script) -> None:
    here, absent = ranks(script(RANK), behave)
    try:
        said = here.communicate(timeout=600)[0]
    finally:
        absent.kill()
        absent.communicate()
    assert re.match(
        r"error: no all-reduce of 2 ranks over gloo in 2 s \(.*\); check the network", said
    )
    assert here.returncode == 2


def test_one_process_needs_no_network() -> None:
    preflight.check_collectives(torch.device("cpu"))
