"""Which kernels add up: on a GPU those of one order."""

from typing import Any

import pytest
import torch

from detalbert.engine.determinism import choose_exact_kernels


@pytest.mark.parametrize("gpu", [True, False])
def test_a_gpu_adds_up_in_one_order(gpu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setattr(
        torch, "use_deterministic_algorithms", lambda mode, **how: calls.append((mode, how))
    )
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    choose_exact_kernels()
    assert calls == [(True, {"warn_only": True})] * gpu
    assert torch.utils.deterministic.fill_uninitialized_memory != gpu
