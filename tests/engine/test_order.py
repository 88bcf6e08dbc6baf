"""The order of training and dealing: functions of (seed, step), at every number of slots."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detalbert.engine.order import Steps, TrainOrder, spread
from detalbert.errors import UserError
from tests.conftest import max_examples

sizes = st.lists(st.integers(6, 60), min_size=1, max_size=60).map(np.array)


@given(sizes, st.integers(1, 4), st.integers(1, 5), st.integers(0, 9), st.integers(1, 4))
@max_examples(60)
def test_every_window_once_an_epoch(
    lengths: np.ndarray, slots: int, per_slot: int, seed: int, epochs: int
) -> None:
    order = TrainOrder(lengths, slots * per_slot, slots, seed)
    steps = -(-epochs * len(lengths) // order.global_batch_size)
    stream = np.concatenate([order.global_batch(step) for step in range(steps)])
    for epoch in range(epochs):
        part = stream[epoch * len(lengths) : (epoch + 1) * len(lengths)]
        assert np.array_equal(np.sort(part), np.arange(len(lengths)))
    shares = [order.share(seed, slot) for slot in range(slots)]
    assert all(len(share) == per_slot for share in shares)
    assert sorted(np.concatenate(shares)) == sorted(order.global_batch(seed))


def test_the_order_is_numpys_of_seed_and_epoch() -> None:
    """A restart with another version must find the same windows."""
    order = TrainOrder(np.full(20, 10), 20, 1, seed=7)
    for epoch in (0, 2):
        wanted = np.random.default_rng([7, epoch]).permutation(20)
        assert np.array_equal(order.global_batch(epoch), wanted)
    for windows, steps in ((3, 1), (8, 1), (15, 1), (16, 2)):
        assert len(Steps(TrainOrder(np.full(windows, 10), 8, 1, seed=0), 0, 0)) == steps
    with pytest.raises(UserError, match=r"hyperparameters\.global_batch_size: 10 .* 4 slots"):
        TrainOrder(np.ones(100), 10, 4, seed=0)


@given(slots=st.integers(1, 8), per_slot=st.integers(1, 8), data=st.data())
def test_deal_gives_every_slot_as_many_windows_and_nearly_as_many_tokens(
    slots: int, per_slot: int, data: st.DataObject
) -> None:
    size = slots * per_slot
    lengths = np.array(data.draw(st.lists(st.integers(1, 384), min_size=size, max_size=size)))
    shares = spread(lengths, slots, per_slot)
    assert [len(share) for share in shares] == [per_slot] * slots
    assert sorted(np.concatenate(shares).tolist()) == list(range(size))
    assert all((np.diff(share) > 0).all() for share in shares)
    tokens = [lengths[share].sum() for share in shares]
    assert max(tokens) - min(tokens) <= lengths.max() - lengths.min()


def test_deal_of_a_known_batch() -> None:
    # Longest first: 9 and 8 open the slots, 7 joins 8, 3 joins 9 (12 < 15); each then has two.
    shares = spread(np.array([3, 9, 7, 8], dtype=np.uint16), 2, 2)
    assert [share.tolist() for share in shares] == [[0, 1], [2, 3]]
    ties = spread(np.array([5, 5, 5, 5]), 2, 2)
    assert [share.tolist() for share in ties] == [[0, 2], [1, 3]]
