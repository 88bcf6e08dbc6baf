"""Kernels that add up in one order; the first call of the CPU's vector math is a small one."""

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch._inductor.config
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import predict
from detalbert.engine.determinism import choose_exact_kernels
from tests.conftest import ROOT, SOAK, Script, settings
from tests.fakes.runs import run

# Forked processes, four at a time: each warms its threads up, then calls the same square root
# twice, and fails if it got two different results.
RACE = """
import os, sys, torch
from detalbert.engine.determinism import choose_exact_kernels

def differs():
    torch.set_num_threads(2)
    choose_exact_kernels()
    draw = torch.Generator().manual_seed(1)
    tensors = [torch.rand(n, generator=draw) for n in (128_000, 4_096, 16_384, 6_144)]
    torch.ones(64, 64) @ torch.ones(64, 64)
    torch.ones(2_000_000).add_(1)
    first, second = torch._foreach_sqrt(tensors), torch._foreach_sqrt(tensors)
    return not all(map(torch.equal, first, second))

for _ in range(int(sys.argv[1])):
    forks = [os.fork() or os._exit(differs()) for _ in range(4)]
    assert [os.waitpid(fork, 0)[1] for fork in forks] == [0] * 4
"""


def test_the_first_vector_math_is_no_race(script: Script) -> None:
    """Without the call 3 to 11 of 600 differed on an Intel Xeon, none on an AMD EPYC."""
    command = [*script(RACE), str(8 * SOAK)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr


class VectorMath(TorchDispatchMode):
    NAMES = "acos asin atan cos erf erfc erfinv exp expm1 log log10 log1p log2 sin sqrt rsqrt tan"
    NAMES = {*NAMES.split(), "tanh", "_foreach_sqrt", "_foreach_exp", "_foreach_log"}

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, int]] = []

    def __torch_dispatch__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if (name := call.overloadpacket.__name__.removesuffix("_")) in self.NAMES:
            sizes = [x.numel() for x in tree_leaves(args) if isinstance(x, torch.Tensor)]
            self.seen.append((name, max(sizes)))
        return call(*args, **(kwargs or {}))


def test_training_and_prediction_begin_with_a_small_one(
    tiny_config: Path, tmp_path: Path, finished: Path
) -> None:
    with VectorMath() as training:
        assert run(tiny_config, tmp_path, *settings(max_steps=1, optimizer="adamw")) == 0
    question = ["--question", "Who?", "--context", "Ann is here."]
    with VectorMath() as prediction:  # it computes in another thread, later
        assert predict.main(["--model", str(finished / "out"), *question]) == 0
    for calls in (training, prediction):
        name, numbers = calls.seen[0]
        assert name == "sqrt" and numbers <= 64
    assert training.seen[1:]  # the program itself calls it, too


@pytest.mark.parametrize("gpu, version", [(True, "2.13.0+cu130"), (True, "2.9.1"), (False, "")])
def test_a_gpu_adds_up_in_one_order(gpu: bool, version: str, monkeypatch: Any) -> None:
    """Strictly: told to warn only, flash attention adds up in any order (seen on an H100)."""
    chosen: list[bool] = []
    monkeypatch.setattr(torch, "use_deterministic_algorithms", chosen.append)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setattr(torch, "__version__", version)
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    triton = SimpleNamespace(mix_order_reduction=True)
    config = SimpleNamespace(deterministic=False, triton=triton)
    monkeypatch.setattr(torch._inductor, "config", config)
    choose_exact_kernels()
    assert chosen == [True] * gpu
    assert torch.utils.deterministic.fill_uninitialized_memory != gpu
    assert (config.deterministic, triton.mix_order_reduction) == (gpu, not gpu)
    assert ("CUBLAS_WORKSPACE_CONFIG" in os.environ) == (version == "2.9.1")  # before 2.11
