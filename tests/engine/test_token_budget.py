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
    gigabyte, half = 1e9, 0.5e9
    memory = {768: gigabyte, 1536: gigabyte + half}
    assert token_budget.fit(lambda n: memory[n], 10 * int(gigabyte), 384) == 14_336
    steep = token_budget.fit(lambda n: n * 10**6, 600 * 10**6, 384)
    assert steep == 384  # whole windows below 1,024 tokens
    assert token_budget.fit(lambda n: n * 10**6, 10**6, 384) == 384  # never less than one
    assert token_budget.fit(lambda n: n, 10**12, 384) == 32_768
    assert token_budget.fit(lambda n: 10**6 + 1000 * n, 10**6 + 5000 * 1000, 384) == 4096


def test_a_budget_where_the_probes_do_not_fit() -> None:
    assert token_budget.fit(lambda n: 1.0 if n == 768 else math.inf, 10**9, 384) == 768
    assert token_budget.fit(lambda n: math.inf, 10**9, 384) == 384


def test_a_cpu_has_a_budget_of_its_own() -> None:
    assert (
        token_budget.resolve(Forward(make_model(), "auto", torch.device("cpu")), 64, 1)
        == token_budget.ON_A_CPU
    )


def test_a_budget_is_cut_to_whole_steps_and_never_below_a_byte_a_token() -> None:
    assert token_budget.fit(lambda n: n, 1024, 384) == 1024
    assert token_budget.fit(lambda n: n, 1023, 384) == 768
    assert token_budget.fit(lambda n: 1000.0, 5000, 384) == 4096  # 5000 - 1000 + 768 tokens


@pytest.mark.parametrize(("fraction", "tokens"), [(0.5, 17 * 1024), (1.0, 26 * 1024)])
def test_a_gpus_budget_is_what_is_free_less_the_moments(
    fraction: float, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """5,000,000 parameters; 600 MB free, 100 reserved, 50 held; a row costs 10 MB, 20 kB a token.

    Of min(700, 500) MB are left 500 - 50 - 40, of these 92 % are 377.2: 18,360 tokens.
    """

    def total(device: torch.device) -> SimpleNamespace:
        return SimpleNamespace(total_memory=10**9)

    facts = {
        "mem_get_info": lambda device: (600 * 10**6, 10**9),
        "memory_reserved": lambda device: 100 * 10**6,
        "memory_allocated": lambda device: 50 * 10**6,
        "get_per_process_memory_fraction": lambda device: fraction,
        "get_device_properties": total,
    }
    for name, fact in facts.items():
        monkeypatch.setattr(torch.cuda, name, fact)
    monkeypatch.setattr(
        token_budget, "peak_memory", lambda forward, n, longest: 60 * 10**6 + 20_000 * n
    )
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
        backward_of_nothing=lambda row: calls.append(row["cu_seqlens"].tolist()),
    )
    assert token_budget.peak_memory(forward, 20, 8) == 123
    assert calls == ["refresh", "reset", [0, 8, 16, 20]]

    def too_small(row: object) -> None:
        raise torch.OutOfMemoryError

    forward.backward_of_nothing = too_small
    assert token_budget.peak_memory(forward, 20, 8) == math.inf
