"""The order of training and dealing: functions of (seed, step), at every number of slots."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detalbert.engine.order import Steps, TrainOrder, spread
from detalbert.errors import UserError
from tests.conftest import max_examples

LENGTHS = st.lists(st.integers(6, 60), min_size=1, max_size=60).map(np.array)


@given(LENGTHS, st.integers(1, 4), st.integers(1, 5), st.integers(0, 9), st.integers(1, 4))
@max_examples(60)
def test_every_window_once_an_epoch(
    lengths: np.ndarray, slots: int, per_slot: int, seed: int, epochs: int
) -> None:
    windows = len(lengths)
    order = TrainOrder(lengths, slots * per_slot, slots, seed)
    steps = -(-epochs * windows // order.global_batch_size)
    stream = np.concatenate([order.global_batch(step) for step in range(steps)])
    for epoch in range(epochs):
        epoch_windows = stream[epoch * windows : (epoch + 1) * windows]
        assert np.array_equal(np.sort(epoch_windows), np.arange(windows))

    step = seed  # any
    shares = [order.share(step, slot) for slot in range(slots)]
    assert all(len(share) == per_slot for share in shares)
    assert sorted(np.concatenate(shares)) == sorted(order.global_batch(step))


def test_the_order_is_numpys_of_seed_and_epoch() -> None:
    """A restart with another version must find the same windows."""
    order = TrainOrder(np.full(20, 10), 20, 1, seed=7)  # an epoch is a step
    for epoch in (0, 2):
        expected = np.random.default_rng([7, epoch]).permutation(20)
        assert np.array_equal(order.global_batch(epoch), expected)


@pytest.mark.parametrize("windows, steps", [(3, 1), (8, 1), (15, 1), (16, 2)])
def test_an_epoch_has_at_least_a_step(windows: int, steps: int) -> None:
    order = TrainOrder(np.full(windows, 10), 8, 1, seed=0)
    assert len(Steps(order, 0, 0)) == steps


def test_a_batch_that_slots_do_not_divide_is_refused() -> None:
    with pytest.raises(UserError, match=r"hyperparameters\.global_batch_size: 10 .* 4 slots"):
        TrainOrder(np.ones(100), 10, 4, seed=0)


@given(slots=st.integers(1, 8), per_slot=st.integers(1, 8), data=st.data())
def test_deal_gives_every_slot_as_many_windows_and_nearly_as_many_tokens(
    slots: int, per_slot: int, data: st.DataObject
) -> None:
    size = slots * per_slot
    drawn = data.draw(st.lists(st.integers(1, 384), min_size=size, max_size=size))
    lengths = np.array(drawn)

    shares = spread(lengths, slots, per_slot)

    assert [len(share) for share in shares] == [per_slot] * slots
    assert sorted(np.concatenate(shares).tolist()) == list(range(size))
    assert all((np.diff(share) > 0).all() for share in shares)
    tokens = [lengths[share].sum() for share in shares]
    assert max(tokens) - min(tokens) <= max(drawn) - min(drawn)


def test_deal_of_a_known_batch() -> None:
    # Longest first: 9 and 8 open the slots, 7 joins 8, 3 joins 9 (12 < 15); each then has two.
    shares = spread(np.array([3, 9, 7, 8], dtype=np.uint16), 2, 2)
    assert [share.tolist() for share in shares] == [[0, 1], [2, 3]]
    ties = spread(np.array([5, 5, 5, 5]), 2, 2)
    assert [share.tolist() for share in ties] == [[0, 2], [1, 3]]
