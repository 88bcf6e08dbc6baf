"""The budget of tokens: the end of a line through two measured rows."""

import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from detalbert.engine import token_budget
from detalbert.engine.forward import Forward
from tests.fakes.encoders import make_model


def test_a_budget_is_the_end_of_a_line() -> None:
    def fit(per_token: float, room: float, base: float = 0) -> int:
        return token_budget.fit(lambda n: base + per_token * n, int(room), 384)

    memory = {768: 1e9, 1536: 1.5e9}
    assert token_budget.fit(lambda n: memory[n], 10 * 10**9, 384) == 14_336
    assert fit(1e6, 6e8) == 384  # whole windows below 1,024 tokens
    assert fit(1e6, 1e6) == 384  # never less than one
    assert fit(1, 1e12) == 32_768
    assert fit(1000, 1e6 + 5e6, base=1e6) == 4096
    assert fit(1, 1024) == 1024
    assert fit(1, 1023) == 768
    assert fit(0, 5000, base=1000) == 4096  # at least a byte a token: 5000 - 1000 + 768 tokens
    assert fit(0, 1e9, base=math.inf) == 384  # the probes do not fit
    assert token_budget.fit(lambda n: 1.0 if n == 768 else math.inf, 10**9, 384) == 768
    cpu = Forward(make_model(), "auto", torch.device("cpu"))
    assert token_budget.resolve(cpu, 64, 1) == token_budget.ON_A_CPU


@pytest.mark.parametrize(("fraction", "tokens"), [(0.5, 17 * 1024), (1.0, 26 * 1024)])
def test_a_gpus_budget_is_what_is_free_less_the_moments(
    fraction: float, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """5,000,000 parameters; 600 MB free, 100 reserved, 50 held; a row costs 10 MB, 20 kB a token.

    Of min(700, 500) MB are left 500 - 50 - 40, of these 92 % are 377.2: 18,360 tokens.
    """
    answers = {
        "mem_get_info": lambda device: (600 * 10**6, 10**9),
        "memory_reserved": lambda device: 100 * 10**6,
        "memory_allocated": lambda device: 50 * 10**6,
        "get_per_process_memory_fraction": lambda device: fraction,
        "get_device_properties": lambda device: SimpleNamespace(total_memory=10**9),
    }
    for name, answer in answers.items():
        monkeypatch.setattr(torch.cuda, name, answer)
    monkeypatch.setattr(token_budget, "peak_memory", lambda _, n, longest: 6 * 10**7 + 20_000 * n)
    model = nn.Linear(5000, 1000, bias=False, device="meta")
    forward = SimpleNamespace(device=torch.device("cuda"), model=model)
    assert token_budget.resolve(forward, 384, 1) == tokens


def test_the_peak_is_of_one_row_forward_and_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda d: calls.append("reset"))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 123)
    forward = SimpleNamespace(
        device=torch.device("cpu"),
        refresh=lambda: calls.append("refresh"),
        zero_loss_backward=lambda row: calls.append(row["cu_seqlens"].tolist()),
    )
    assert token_budget.peak_memory(forward, 20, 8) == 123
    assert calls == ["refresh", "reset", [0, 8, 16, 20]]

    def too_small(row: object) -> None:
        raise torch.OutOfMemoryError

    forward.zero_loss_backward = too_small
    assert token_budget.peak_memory(forward, 20, 8) == math.inf
