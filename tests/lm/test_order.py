"""Windows are cut end to end; every one comes once an epoch, at any number of ranks."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lm.order import WindowOrder, permute
from lm.windows import LmWindows, validation_loader
from tests.conftest import max_examples


class InMemory:
    """Stands for `Shards`: documents of some lengths in every shard; token n is number n of it."""

    split = "train"

    def __init__(self, lengths: list[list[int]]) -> None:
        self.pointers = [np.cumsum([0, *documents]) for documents in lengths]
        self.shards = [{"tokens": int(pointer[-1])} for pointer in self.pointers]
        self.names = [""]
        self.sources = [0] * len(lengths)
        self.counts = {"tokens": sum(map(sum, lengths)), "text_bytes": 99}

    def columns(self, shard: int) -> dict[str, np.ndarray]:
        pointer = self.pointers[shard]
        return {"tokens": np.arange(pointer[-1], dtype="<u2"), "document_ptr": pointer}


DOCUMENT_LENGTHS = st.lists(st.integers(1, 30), min_size=1, max_size=20)
LENGTHS = st.lists(DOCUMENT_LENGTHS, min_size=1, max_size=4)  # of the documents of each shard


def all_places(counts: Sequence[int]) -> list[tuple[int, int]]:
    """(shard, window in it) of every window, by the number of windows of each shard."""
    places = []
    for shard, count in enumerate(counts):
        places += [(shard, window) for window in range(count)]
    return places


def as_tuples(places: np.ndarray) -> list[tuple[int, int]]:
    return [tuple(place) for place in places.tolist()]


@given(LENGTHS, st.integers(1, 20))
@max_examples(80)
def test_windows_are_cut_end_to_end(lengths, length):
    shards: Any = InMemory([[length + 1], *lengths])
    apart = LmWindows(shards, length)
    across_documents = LmWindows(shards, length, across_documents=True)
    for shard, pointer in enumerate(shards.pointers):
        shard_tokens = pointer[-1]
        targets = []
        for number in range(int(apart.counts[shard])):
            tokens, segments = apart[shard, number]
            begin = number * length
            end = begin + length + 1
            assert tokens.dtype == segments.dtype == torch.int64
            assert tokens.tolist() == list(range(begin, end))
            # A segment begins with the window and wherever a document does.
            documents = np.searchsorted(pointer, tokens.numpy(), side="right")
            _, document_tokens = np.unique(documents, return_counts=True)
            assert segments.tolist() == document_tokens.tolist()
            assert across_documents[shard, number][1].tolist() == [len(tokens)]
            targets += tokens[1:].tolist()

        assert targets == list(range(1, len(targets) + 1))  # each once
        left_out = shard_tokens - 1 - len(targets)
        assert 0 <= left_out < length


@given(LENGTHS, st.integers(1, 9), st.integers(1, 5))
def test_ranks_share_a_validation(lengths, length, ranks):
    shards: Any = InMemory([[length + 1], *lengths])
    windows = LmWindows(shards, length)
    everything = all_places(windows.counts.tolist())
    for limit in (None, 3):
        loaders = []
        for rank in range(ranks):
            loaders.append(validation_loader(windows, limit, rank, ranks, max_tokens=2 * length))
        drawn = as_tuples(windows.draw(limit)[0])

        assert len({len(loader) for loader, _ in loaders}) == 1
        assert drawn == sorted(drawn)
        assert set(drawn) <= set(everything)
        assert len(set(drawn)) == min(limit or len(everything), len(everything))
        for rank, (loader, sources) in enumerate(loaders):
            rank_places = []
            for _, places in loader.sampler:
                rank_places += as_tuples(places)
            assert rank_places == drawn[rank::ranks]
            assert sources == [0] * len(loader)


SHARDS = st.lists(st.integers(0, 12), min_size=1, max_size=12).filter(any)  # windows of each


@given(SHARDS, st.integers(1, 20), st.integers(1, 5), st.integers(0, 9))
@max_examples(150)
def test_each_window_once_an_epoch(windows, batch, group, seed):
    order = WindowOrder(windows, batch, seed, group)
    everything = all_places(windows)
    size = len(everything)
    places = []
    for step in range(-(-3 * size // batch)):  # those of three epochs
        places += as_tuples(order.step(step))

    for epoch in range(3):
        epoch_places = places[epoch * size : (epoch + 1) * size]
        assert sorted(epoch_places) == everything
        # Shards are mixed in groups, one group after another.
        shards = [shard for shard, _ in epoch_places]
        first = {shard: shards.index(shard) for shard in shards}
        last = {shard: index for index, shard in enumerate(shards)}
        for index in range(size):
            begun = [shard for shard in first if first[shard] <= index]
            assert sum(index <= last[shard] for shard in begun) <= group


@pytest.mark.parametrize("size", [1, 2, 7, 4096, 4097, 5000, 65_537])
def test_a_permutation_has_every_number(size):
    places = np.arange(size, dtype=np.uint64)
    numbers = permute(places, size, np.random.default_rng(size))
    assert np.array_equal(np.sort(numbers), places)

    # A small permutation is drawn at once, a large one computed place by place.
    drawn = np.random.default_rng(size).permutation(size)
    assert np.array_equal(numbers, drawn) == (size <= 4096)

    step = max(1, size // 9)
    some_numbers = permute(places[::step], size, np.random.default_rng(size))
    assert np.array_equal(some_numbers, numbers[::step])
