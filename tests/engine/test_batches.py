"""Order, dealing and loaders: functions of (seed, step), the same at every number of slots."""

from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from detalbert.engine.batches import micro_batches, train_loader, validation_loader
from detalbert.engine.order import TrainOrder, deal
from detalbert.errors import UserError
from detalbert.squad.windows import Windows


def make_windows(lengths: np.ndarray) -> Windows:
    """Windows with a two-token question and contexts of `lengths` - 5 tokens."""
    context = np.asarray(lengths, np.int32) - 5
    ends = np.cumsum(context, dtype=np.int64)
    count = len(context)
    return Windows(
        context_ids=np.arange(ends[-1], dtype=np.int32),
        context_offsets=np.zeros((ends[-1], 2), np.int32),
        question_ids=np.arange(2 * count, dtype=np.int32),
        question_ptr=np.arange(0, 2 * count + 1, 2, dtype=np.int64),
        example_index=np.arange(count, dtype=np.int32),
        context_begin=ends - context,
        context_length=context,
        start_positions=np.zeros(count, np.int32),
        end_positions=np.zeros(count, np.int32),
        prefix_ids=np.array([1], np.int32),
        middle_ids=np.array([2], np.int32),
        suffix_ids=np.array([2], np.int32),
        segments=np.array([0, 0, 0, 1, 1], np.int32),
    )


sizes = st.lists(st.integers(6, 60), min_size=1, max_size=60).map(np.array)


@given(sizes, st.integers(1, 4), st.integers(1, 5), st.integers(0, 9), st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_every_window_once_an_epoch(
    lengths: np.ndarray, slots: int, per_slot: int, seed: int, epochs: int
) -> None:
    order = TrainOrder(lengths, slots * per_slot, slots, seed)
    steps = -(-epochs * len(lengths) // order.global_batch_size)
    stream = np.concatenate([order.global_batch(step) for step in range(steps)])
    for epoch in range(epochs):
        part = stream[epoch * len(lengths) : (epoch + 1) * len(lengths)]
        assert np.array_equal(np.sort(part), np.arange(len(lengths)))


@given(sizes, st.sampled_from([1, 2, 4]), st.integers(0, 20))
@settings(max_examples=60, deadline=None)
def test_slots_share_the_batch_of_one(lengths: np.ndarray, slots: int, step: int) -> None:
    alone = TrainOrder(lengths, 8, 1, seed=3)
    shared = TrainOrder(lengths, 8, slots, seed=3)
    parts = [shared.share(step, slot) for slot in range(slots)]
    assert all(len(part) == 8 // slots for part in parts)
    assert sorted(np.concatenate(parts)) == sorted(alone.share(step, 0))


def test_epochs_and_seeds_differ() -> None:
    lengths = np.full(64, 10)
    first = TrainOrder(lengths, 64, 1, seed=0)
    assert not np.array_equal(first.global_batch(0), first.global_batch(1))
    assert not np.array_equal(
        first.global_batch(0), TrainOrder(lengths, 64, 1, seed=1).global_batch(0)
    )


def test_a_batch_the_slots_do_not_divide_is_refused() -> None:
    with pytest.raises(UserError, match="hyperparameters.global_batch_size: 10 .* 4 slots"):
        TrainOrder(np.ones(100), 10, 4, seed=0)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_loader_starts_at_any_step(workers: int) -> None:
    windows = make_windows(np.random.default_rng(0).integers(6, 50, 37))
    order = TrainOrder(windows.lengths, 8, 2, seed=5)
    whole = train_loader(windows, order, 1, 0, 60, workers, pin_memory=False)
    assert len(whole) == 4  # 37 windows at 8 a step
    later = train_loader(windows, order, 1, 7, 60, workers, pin_memory=False)
    for expected, rows in zip(islice(whole, 7, 12), later, strict=False):
        assert len(expected) == len(rows) > 1
        for one, other in zip(expected, rows, strict=True):
            assert torch.equal(one["input_ids"], other["input_ids"])
            assert one["max_length"] == int(one["cu_seqlens"].diff().max())


@given(sizes, st.sampled_from([1, 2, 3, 64]))
@settings(max_examples=40, deadline=None)
def test_validation_rows_do_not_depend_on_the_slots(lengths: np.ndarray, slots: int) -> None:
    windows = make_windows(lengths)

    def rows_of(slots: int, slot: int) -> list:
        loader = validation_loader(windows, slots, slot, 80)
        return [row["windows"].tolist() for rows in loader for row in rows]

    alone = rows_of(1, 0)
    dealt = [rows_of(slots, slot) for slot in range(slots)]
    assert sorted(sum(dealt, [])) == sorted(alone)
    assert sorted(sum(alone, [])) == list(range(len(lengths)))
    assert all(sum(lengths[row]) <= 80 for row in alone)
    assert (np.diff(lengths[sum(alone, [])]) >= 0).all()  # like lengths; one chunk of questions
    for slot in range(slots):  # Determined refuses a loader without a batch
        assert len(validation_loader(windows, slots, slot, 80)) >= 1


longer = st.lists(st.integers(1, 384), min_size=1, max_size=60)


@settings(deadline=None, derandomize=True)
@given(slots=st.integers(1, 8), per_slot=st.integers(1, 8), data=st.data())
def test_deal_gives_every_slot_as_many_windows_and_nearly_as_many_tokens(
    slots: int, per_slot: int, data: st.DataObject
) -> None:
    size = slots * per_slot
    lengths = np.array(data.draw(st.lists(st.integers(1, 384), min_size=size, max_size=size)))
    shares = deal(lengths, slots)
    assert [len(share) for share in shares] == [per_slot] * slots
    assert sorted(np.concatenate(shares).tolist()) == list(range(size))
    assert all((np.diff(share) > 0).all() for share in shares)
    tokens = [lengths[share].sum() for share in shares]
    assert max(tokens) - min(tokens) <= lengths.max() - lengths.min()


def test_deal_of_a_known_batch() -> None:
    # Longest first: 9 and 8 open the slots, 7 joins 8, 3 joins 9 (12 < 15); each then has two.
    shares = deal(np.array([3, 9, 7, 8], dtype=np.uint16), 2)
    assert [share.tolist() for share in shares] == [[0, 1], [2, 3]]
    ties = deal(np.array([5, 5, 5, 5]), 2)
    assert [share.tolist() for share in ties] == [[0, 2], [1, 3]]


def test_deal_evens_out_what_random_dealing_does_not() -> None:
    lengths = np.random.default_rng(0).integers(40, 385, 512)
    dealt = [lengths[share].sum() for share in deal(lengths, 64)]
    assert lengths.reshape(64, 8).sum(1).max() / lengths.sum() * 64 > 1.2
    assert max(dealt) / lengths.sum() * 64 < 1.02


def test_deal_refuses_a_batch_that_does_not_divide() -> None:
    with pytest.raises(UserError, match=r"hyperparameters\.global_batch_size: 48 .* 7 slots"):
        deal(np.full(48, 100), 7)


@settings(deadline=None, derandomize=True)
@example(lengths=[384] * 11, spare=0)
@given(lengths=longer, spare=st.integers(0, 4096))
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
