"""The soak of `tests.chaos`, short: a few cuts, and what it must see when a part is missing."""

import pytest

from tests import chaos


def test_a_few_cuts_leave_no_trace(python):
    assert chaos.soak(cuts=2, seed=4, steps=30, kinds=["SIGKILL", "full disk"], python=python) == []


RUNS = {"one process": (1, False, None), "two": (2, False, None), "pretraining": (1, True, None)}
MIXED = "[{source: generated, weight: 5}, {source: docs, weight: 3}, {source: lm/*.md, weight: 2}]"
RUNS |= {"a language model": (4, False, "{shard: 2, tensor: 2}")}


@pytest.mark.soak
@pytest.mark.parametrize("name", RUNS)
def test_cuts_in_numbers(name, real_python):
    processes, *kind = RUNS[name]
    assert chaos.soak(20, processes, seed=1, workload=chaos.words_of(*kind)) == []


@pytest.mark.soak
@pytest.mark.parametrize(
    ("processes", "layout"), [(1, "{}"), (2, "{}"), (4, "{shard: 2, tensor: 2}")]
)
def test_cuts_of_a_mixture(processes, layout, real_python):
    words = [*chaos.words_of(layout=layout), "--set", f"data.documents={MIXED}"]
    assert chaos.soak(8, processes, seed=2, workload=words) == []


@pytest.mark.soak
def test_without_our_randomness_two_ranks_differ(real_python):
    """Determined's own restore gives every rank the chief's generator, so masks change."""
    # Seed 4 cuts early, at a quarter of the uncut run's time, so that a busy machine which is
    # less busy the second time is not past the end by then.
    found = chaos.soak(1, 2, "rng", seed=4, steps=60, kinds=["SIGTERM"])
    assert "models_state_dict" in found
