"""The soak of `tests.chaos`, short: a few cuts, and what it must see when a part is missing."""

import pytest

from tests import chaos


def test_a_few_cuts_leave_no_trace(python):
    assert chaos.soak(cuts=2, seed=4, steps=30, kinds=["SIGKILL", "full disk"], python=python) == []


MIXED = "[{source: generated, weight: 5}, {source: docs, weight: 3}, {source: lm/*.md, weight: 2}]"
RUNS = {  # processes and workload
    "one process": (1, chaos.words_of()),
    "two": (2, chaos.words_of()),
    "pretraining": (1, chaos.words_of(pretraining=True)),
    "a ModernBERT goes on": (1, chaos.words_of(pretraining=True, family="modernbert")),
    "a DeBERTa goes on": (1, chaos.words_of(pretraining=True, family="deberta-v2")),
    "a language model": (4, chaos.words_of(layout="{shard: 2, tensor: 2}")),
}


@pytest.mark.soak
@pytest.mark.parametrize("processes, workload", RUNS.values(), ids=RUNS)
def test_cuts_in_numbers(processes, workload, real_python):
    assert chaos.soak(20, processes, seed=1, workload=workload) == []


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
    different = chaos.soak(cuts=1, processes=2, without="rng", seed=4, steps=60, kinds=["SIGTERM"])
    assert "models_state_dict" in different
