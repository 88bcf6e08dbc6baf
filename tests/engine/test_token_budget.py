"""The budget of tokens: the end of a line through two measured rows."""

import math

import torch

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
    assert token_budget.fit(lambda n: n, 10**12, 384) == token_budget.LARGEST
    assert token_budget.fit(lambda n: 10**6 + 1000 * n, 10**6 + 5000 * 1000, 384) == 4096


def test_a_budget_where_the_probes_do_not_fit() -> None:
    assert token_budget.fit(lambda n: 1.0 if n == 768 else math.inf, 10**9, 384) == 768
    assert token_budget.fit(lambda n: math.inf, 10**9, 384) == 384


def test_a_cpu_has_a_budget_of_its_own() -> None:
    assert (
        token_budget.resolve(Forward(make_model(), "auto", torch.device("cpu")), 64, 1)
        == token_budget.ON_A_CPU
    )
