"""Cuts at random moments leave no trace, and are seen when a part of the restart is missing."""

from typing import Any

import pytest

from tests import chaos
from tests.conftest import TINY, TINY_LM, TINY_PRETRAINING


def test_a_few_cuts_leave_no_trace(python: str) -> None:
    assert chaos.soak(cuts=2, seed=4, steps=30, kinds=["SIGKILL", "full disk"], python=python) == []


RUNS: dict[str, tuple[int, Any, dict[str, Any]]] = {
    "one process": (1, TINY, {}),
    "two": (2, TINY, {}),
    "pretraining": (1, TINY_PRETRAINING, {"span_fraction": 0.3}),
    "a language model": (4, TINY_LM, {"layout": {"shard": 2, "tensor": 2}}),
}


@pytest.mark.soak
@pytest.mark.parametrize("processes, config, hparams", RUNS.values(), ids=RUNS)
def test_cuts_in_numbers(processes: int, config: Any, hparams: Any, real_python: str) -> None:
    assert chaos.soak(20, processes, seed=1, config=config, **hparams) == []


@pytest.mark.soak
@pytest.mark.parametrize("part", ["rng", "order", "position"])
def test_without_a_part_two_ranks_differ(part: str, real_python: str) -> None:
    """Determined's own restore gives every rank the chief's generator, so masks change."""
    # Seed 4 cuts early, at a quarter of the uncut run's time, so that a busy machine which is
    # less busy the second time is not past the end by then.
    found = chaos.soak(1, 2, part, seed=4, steps=60, kinds=["SIGTERM"])
    assert "models_state_dict" in found
