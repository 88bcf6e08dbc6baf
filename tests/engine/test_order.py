"""The order of training and dealing: functions of (seed, step), at every number of slots."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detalbert.engine.order import ShardOrder, Steps, TrainOrder, spread
from detalbert.errors import UserError
from tests.conftest import max_examples

LENGTHS = st.lists(st.integers(6, 60), min_size=1, max_size=60).map(np.array)


@given(LENGTHS, st.integers(1, 4), st.integers(1, 5), st.integers(0, 9), st.integers(1, 4))
@max_examples(60)
def test_every_window_once_an_epoch(lengths, slots, per_slot, seed, epochs):
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


@given(LENGTHS, st.data(), st.integers(1, 6), st.integers(0, 9))
@max_examples(60)
def test_an_epoch_leaves_some_optional_windows_out(lengths, data, batch, seed):
    windows = len(lengths)
    optional = data.draw(st.sets(st.integers(0, windows - 1), max_size=windows - 1))
    left_out = data.draw(st.integers(0, len(optional)))
    order = TrainOrder(lengths, batch, 1, seed, optional=sorted(optional), left_out=left_out)
    size = windows - left_out
    assert len(order) == size
    stream = np.concatenate([order.global_batch(step) for step in range(-(-3 * size // batch))])
    for epoch in range(3):
        chosen = stream[epoch * size : (epoch + 1) * size].tolist()
        assert len(set(chosen)) == size
        assert set(range(windows)) - set(chosen) <= optional
        # In the order that they would have among all.
        shuffled = np.random.default_rng([seed, epoch]).permutation(windows).tolist()
        assert chosen == [window for window in shuffled if window in chosen]


def test_other_windows_are_left_out_of_each_epoch():
    """Each as often as any other."""
    order = TrainOrder(np.full(30, 10), 20, 1, seed=3, optional=range(20), left_out=10)
    counts = np.bincount(np.concatenate([order.global_batch(epoch) for epoch in range(400)]))
    assert (counts[20:] == 400).all()
    assert counts[:20].min() > 150
    assert counts[:20].max() < 250


def test_the_order_is_numpys_of_seed_and_epoch():
    """A restart with another version must find the same windows."""
    order = TrainOrder(np.full(20, 10), 20, 1, seed=7)  # an epoch is a step
    for epoch in (0, 2):
        expected = np.random.default_rng([7, epoch]).permutation(20)
        assert np.array_equal(order.global_batch(epoch), expected)


SIZES = st.lists(st.integers(0, 12), min_size=1, max_size=12).filter(any)  # windows of each shard


@given(SIZES, st.integers(1, 20), st.integers(1, 5), st.integers(0, 9))
@max_examples(60)
def test_windows_of_shards_come_once_an_epoch(sizes, batch, group, seed):
    bounds = np.cumsum([0, *sizes])
    order = ShardOrder(bounds, [0] * len(sizes), None, batch, seed, group)
    count = len(order)
    stream = np.concatenate([order.global_batch(step) for step in range(-(-3 * count // batch))])
    for epoch in range(3):
        tickets = stream[epoch * count : (epoch + 1) * count]
        assert (tickets[:, 0] == epoch).all()
        assert np.array_equal(np.sort(tickets[:, 1]), np.arange(count))

        # Shards are mixed in groups, one group after another.
        shards = (np.searchsorted(bounds, tickets[:, 1], side="right") - 1).tolist()
        for index in range(count):
            begun, coming = set(shards[: index + 1]), set(shards[index:])
            assert len(begun & coming) <= group
    assert order.permutation.cache_info().currsize == min(2, -(-len(stream) // count))


@pytest.mark.parametrize("number", range(6))
def test_the_order_of_shards_is_numpys_of_seed_source_and_epoch(number):
    order = ShardOrder(np.array([0, 2, 5, 9]), [1, 0, 1], [1, 3], 16, seed=number, group=1)
    seed = number + (1 << 64)
    first, second = np.random.default_rng([seed, 0, 1]).permutation([0, 2])
    rng = np.random.default_rng([seed, 0])
    windows = {0: [0, 1], 2: [5, 6, 7, 8]}
    expected = [*rng.permutation(windows[first]), *rng.permutation(windows[second])]
    numbers = order.global_batch(0)[:, 1]
    assert numbers[(numbers < 2) | (numbers > 4)][:6].tolist() == expected


@pytest.mark.parametrize(("windows", "steps"), [(3, 1), (8, 1), (15, 1), (16, 2)])
def test_an_epoch_has_at_least_a_step(windows, steps):
    order = TrainOrder(np.full(windows, 10), 8, 1, seed=0)
    assert len(Steps(order, 0, 0)) == steps


def test_a_batch_that_slots_do_not_divide_is_refused():
    with pytest.raises(UserError, match=r"hyperparameters\.global_batch_size: 10 .* 4 slots"):
        TrainOrder(np.ones(100), 10, 4, seed=0)


@given(slots=st.integers(1, 8), per_slot=st.integers(1, 8), data=st.data())
def test_deal_gives_every_slot_as_many_windows_and_nearly_as_many_tokens(slots, per_slot, data):
    size = slots * per_slot
    drawn = data.draw(st.lists(st.integers(1, 384), min_size=size, max_size=size))
    lengths = np.array(drawn)

    shares = spread(lengths, slots, per_slot)

    assert [len(share) for share in shares] == [per_slot] * slots
    assert sorted(np.concatenate(shares).tolist()) == list(range(size))
    assert all((np.diff(share) > 0).all() for share in shares)
    tokens = [lengths[share].sum() for share in shares]
    assert max(tokens) - min(tokens) <= max(drawn) - min(drawn)
