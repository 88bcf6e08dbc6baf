"""Cutting windows into micro-batches."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from detalbert.engine.batches import micro_batches
from detalbert.errors import UserError


@settings(deadline=None, derandomize=True)
@example(lengths=[384] * 11, spare=0)
@given(lengths=st.lists(st.integers(1, 384), min_size=1, max_size=60), spare=st.integers(0, 4096))
def test_micro_batches_are_few_and_even(lengths: list, spare: int) -> None:
    lengths = np.array(lengths)
    longest = int(lengths.max())
    max_tokens = longest + spare
    parts = micro_batches(lengths, max_tokens)
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(lengths)))
    assert all((np.diff(part) > 0).all() for part in parts)
    tokens = [int(lengths[part].sum()) for part in parts]
    assert max(tokens) <= max_tokens
    assert max(tokens) - min(tokens) <= longest
    # A bin that overflowed held, before its last window, no more than the mean of all bins: with
    # one bin less, total / (bins - 1) + longest > max_tokens.
    assert (len(parts) - 1) * spare <= lengths.sum() or len(parts) == 1


def test_micro_batches_takes_the_fewest_that_the_total_allows() -> None:
    lengths = np.array([100, 300, 200, 200, 100, 100])
    parts = micro_batches(lengths, 500)
    assert [int(lengths[part].sum()) for part in parts] == [500, 500]
    assert micro_batches(np.array([], dtype=np.int64), 500) == []


def test_micro_batches_names_the_key_for_a_window_that_does_not_fit() -> None:
    with pytest.raises(UserError, match=r"hyperparameters\.max_tokens_per_forward: 100 .* 101 "):
        micro_batches(np.array([50, 101]), 100)
