"""Cutting windows into micro-batches."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from detalbert.engine import rows
from detalbert.engine.rows import micro_batches, rows_of_like_lengths, validation_rows
from detalbert.errors import UserError


def as_lists(rows):
    return [row.tolist() for row in rows]


@example(window_lengths=[384] * 11, spare=0)
@given(
    window_lengths=st.lists(st.integers(1, 384), min_size=1, max_size=60),
    spare=st.integers(0, 4096),
)
def test_micro_batches_are_few_and_even(window_lengths, spare):
    lengths = np.array(window_lengths)
    longest = max(window_lengths)
    max_tokens = longest + spare

    batches = micro_batches(lengths, max_tokens)

    assert sorted(np.concatenate(batches).tolist()) == list(range(len(lengths)))
    assert all((np.diff(batch) > 0).all() for batch in batches)
    tokens = [int(lengths[batch].sum()) for batch in batches]
    assert max(tokens) <= max_tokens
    assert max(tokens) - min(tokens) <= longest
    # A bin that overflowed held, before its last window, no more than the mean of all bins: with
    # one bin less, total / (bins - 1) + longest > max_tokens.
    assert (len(batches) - 1) * spare <= sum(tokens) or len(batches) == 1


def test_a_window_that_fits_no_micro_batch_is_refused():
    assert micro_batches(np.array([], dtype=np.int64), 500) == []
    with pytest.raises(UserError, match=r"hyperparameters\.max_tokens_per_forward: 100 .* 101 "):
        micro_batches(np.array([50, 101]), 100)
    assert len(micro_batches(np.array([50, 100]), 100)) == 2  # it just fits


def test_rows_of_like_lengths_are_full():
    """Shortest first, equal ones in file order; a row ends before the window that is too much."""
    lengths = np.array([9, 3, 1, 2, 2, 1, 9], dtype=np.uint16)
    assert as_lists(rows_of_like_lengths(lengths, 1, 6, 4)) == [[2, 5, 3], [4], [1]]

    # Padded to the longest of its row.
    padded = rows_of_like_lengths(np.array([9, 3, 8, 4]), 0, 4, max_tokens=20, padded=True)
    assert as_lists(padded) == [[1, 3], [2, 0]]

    mixed = np.tile([5, 4], 40)  # a sort that keeps no order shows
    (row,) = rows_of_like_lengths(mixed, 0, 80, 1000)
    assert row.tolist() == [*range(1, 80, 2), *range(0, 80, 2)]


def test_validation_rows_are_of_one_chunk(monkeypatch):
    """Five questions, two windows each, two questions a chunk: no row reaches over two chunks."""
    monkeypatch.setattr(rows, "CHUNK", 2)
    lengths = np.array([30, 20, 10, 40, 30, 20, 10, 40, 9, 8])
    questions = np.repeat(np.arange(5), 2)
    cut = validation_rows(lengths, questions, 60)
    assert as_lists(cut) == [[2, 1, 0], [3], [6, 5, 4], [7], [9, 8]]
    assert as_lists(validation_rows(lengths, questions, 1000))[-1] == [9, 8]
    assert validation_rows(lengths[:0], questions[:0], 60) == []
