"""Kernels that add up in one order; the first call of the CPU's vector math is a small one."""

import json
import os
import subprocess
import types
from pathlib import Path

import pytest
import torch
import torch._inductor.config

from detalbert.engine.determinism import choose_exact_kernels
from tests.conftest import ROOT, LocalRun, Script

# Forked processes, four at a time: each warms its threads up, then calls the same square root
# twice; prints how many got two different results.
RACE = """
import os, sys, torch
from detalbert.engine.determinism import choose_exact_kernels

FORKS, WARM = int(sys.argv[1]), sys.argv[2] == "warm"
SIZES = (128_000, 4_096, 16_384, 6_144)

def differs():
    torch.set_num_threads(2)
    if WARM:
        choose_exact_kernels()
    draw = torch.Generator().manual_seed(1)
    tensors = [torch.rand(n, generator=draw) for n in SIZES]
    torch.ones(64, 64) @ torch.ones(64, 64)
    torch.ones(2_000_000).add_(1)
    first, second = torch._foreach_sqrt(tensors), torch._foreach_sqrt(tensors)
    return not all(map(torch.equal, first, second))

different = 0
for start in range(0, FORKS, 4):
    children = []
    for _ in range(4):
        child = os.fork()
        if child == 0:
            os._exit(int(differs()))
        children.append(child)
    for child in children:
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert status in (0, 1), status
        different += status
print(different)
"""


def test_the_first_vector_math_is_no_race(real_python: str) -> None:
    """Without the call 3 to 11 of 600 differed on an Intel Xeon, none on an AMD EPYC."""
    command = [real_python, "-c", RACE, "200", "warm"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == 0


# Runs a module's main, and prints the first call of MKL's vector math: its name, its numbers.
WATCH = """
import importlib, json, sys
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

VECTOR_MATH = set(
    "acos asin atan cos erf erfc erfinv exp expm1 log log10 log1p log2 sin sqrt rsqrt tan tanh "
    "_foreach_sqrt _foreach_exp _foreach_log".split()
)

class Watch(TorchDispatchMode):
    seen = []
    def __torch_dispatch__(self, call, types, args=(), kwargs=None):
        name = call.overloadpacket.__name__.removesuffix("_")
        if name in VECTOR_MATH or name + "_" in VECTOR_MATH:
            tensors = [x for x in tree_leaves(args) if isinstance(x, torch.Tensor)]
            self.seen.append((name, max(x.numel() for x in tensors)))
        return call(*args, **(kwargs or {}))

module = importlib.import_module(sys.argv.pop(1))
with Watch():
    module.main()
print(json.dumps(Watch.seen))
"""


def vector_math(command: list[str], module: str, *arguments: object) -> list[tuple[str, int]]:
    """What the main thread of a program calls: name, numbers."""
    command = [*command, module, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_training_begins_with_a_small_one(
    tiny_config: Path, tmp_path: Path, script: Script
) -> None:
    arguments = ["--config", tiny_config, "--output-dir", tmp_path / "out"]
    (first, numbers), *rest = vector_math(script(WATCH), "train", *arguments)
    assert first == "sqrt" and numbers <= 64
    assert rest  # the program itself calls it, too


def test_prediction_begins_with_a_small_one(local_run: LocalRun, script: Script) -> None:
    """It computes in another thread, later."""
    question = ["--question", "Who?", "--context", "Ann is here."]
    (first, numbers), *_ = vector_math(
        script(WATCH), "predict", "--model", local_run.path, *question
    )
    assert first == "sqrt" and numbers <= 64


@pytest.mark.parametrize(("gpu", "version"), [(True, "2.13.0+cu130"), (True, "2.9.1"), (False, "")])
def test_a_gpu_adds_up_in_one_order(
    gpu: bool, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Strictly: told to warn only, flash attention adds up in any order (seen on an H100)."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setattr(torch, "__version__", version)
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    chosen = types.SimpleNamespace(deterministic=False, triton=types.SimpleNamespace())
    chosen.triton.mix_order_reduction = True
    monkeypatch.setattr(torch._inductor, "config", chosen)
    try:
        choose_exact_kernels()
        assert torch.get_deterministic_debug_mode() == (2 if gpu else 0)  # 2: error, 1: warn
    finally:
        torch.set_deterministic_debug_mode(0)
    assert torch.utils.deterministic.fill_uninitialized_memory != gpu
    assert chosen.deterministic == gpu
    assert chosen.triton.mix_order_reduction != gpu
    assert ("CUBLAS_WORKSPACE_CONFIG" in os.environ) == (version == "2.9.1")  # before 2.11
