"""Kernels that add up in one order; the first call of the CPU's vector math is a small one."""

import os
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
from tests.conftest import settings
from tests.fakes.runs import run


class VectorMath(TorchDispatchMode):
    NAMES = "acos asin atan cos erf erfc erfinv exp expm1 log log10 log1p log2 sin sqrt rsqrt tan"
    NAMES = {*NAMES.split(), "tanh", "_foreach_sqrt", "_foreach_exp", "_foreach_log"}

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, int]] = []

    def __torch_dispatch__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = call.overloadpacket.__name__.removesuffix("_")
        if name in self.NAMES:
            sizes = [leaf.numel() for leaf in tree_leaves(args) if isinstance(leaf, torch.Tensor)]
            self.seen.append((name, max(sizes)))
        return call(*args, **(kwargs or {}))


def test_training_and_prediction_begin_with_a_small_one(
    tiny_config: Path, tmp_path: Path, finished: Path
) -> None:
    """A first call on one thread is no race: without it 3 to 11 of 600 processes took another
    square root on an Intel Xeon, none on an AMD EPYC."""
    with VectorMath() as training:
        assert run(tiny_config, tmp_path, *settings(max_steps=1, optimizer="adamw")) == 0
    question = ["--question", "Who?", "--context", "Ann is here."]
    with VectorMath() as prediction:  # it computes in another thread, later
        assert predict.main(["--model", str(finished / "out"), *question]) == 0
    for calls in (training, prediction):
        name, numbers = calls.seen[0]
        assert name == "sqrt"
        assert numbers <= 64
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
    assert chosen == ([True] if gpu else [])
    assert torch.utils.deterministic.fill_uninitialized_memory != gpu
    assert config.deterministic == gpu
    assert triton.mix_order_reduction != gpu
    assert ("CUBLAS_WORKSPACE_CONFIG" in os.environ) == (version == "2.9.1")  # before 2.11
