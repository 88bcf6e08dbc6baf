"""Windows are cut end to end; every one comes once an epoch, at any number of ranks."""

import hashlib
import tracemalloc
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
        self.pointers = [np.cumsum([0, *some]) for some in lengths]
        self.shards = [{"tokens": int(pointer[-1])} for pointer in self.pointers]
        self.names, self.sources = [""], [0] * len(lengths)
        self.counts = {"tokens": sum(map(sum, lengths)), "text_bytes": 99}

    def columns(self, shard: int) -> dict[str, np.ndarray]:
        pointer = self.pointers[shard]
        return {"tokens": np.arange(pointer[-1], dtype="<u2"), "document_ptr": pointer}


LENGTHS = st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=20), min_size=1, max_size=4)


@given(LENGTHS, st.integers(1, 20), st.booleans())
@max_examples(80)
def test_windows_are_cut_end_to_end(lengths, length, tails):
    shards: Any = InMemory([[length + 1], *lengths])
    windows, across = (LmWindows(shards, length, over, tails=tails) for over in (False, True))
    for shard, counts in enumerate(shards.pointers):
        targets = []
        for number in range(int(windows.counts[shard])):
            tokens, pieces = windows[shard, number]
            first = number * length
            assert tokens.dtype == pieces.dtype == torch.int64
            assert tokens.tolist() == list(range(first, min(first + length + 1, counts[-1])))
            # A piece begins with the window and wherever a document does.
            documents = np.searchsorted(counts, tokens.numpy(), side="right")
            wanted = np.unique(documents, return_counts=True)[1].tolist()
            assert pieces.tolist() == wanted
            assert across[shard, number][1].tolist() == [len(tokens)]
            targets += tokens[1:].tolist()
        assert targets == list(range(1, len(targets) + 1))  # each once
        assert 0 <= counts[-1] - 1 - len(targets) < (1 if tails else length)


@given(LENGTHS, st.integers(1, 9), st.integers(1, 5))
def test_ranks_share_a_validation(lengths, length, ranks):
    windows = LmWindows(InMemory([[length + 1], *lengths]), length)  # type: ignore[arg-type]
    everything = [(s, w) for s, count in enumerate(windows.counts.tolist()) for w in range(count)]
    for limit in (None, 3):
        made = [validation_loader(windows, limit, r, ranks, 2 * length) for r in range(ranks)]
        assert len({len(loader) for loader, _ in made}) == 1
        drawn = [tuple(place) for place in windows.draw(limit)[0].tolist()]
        assert drawn == sorted(drawn) and set(drawn) <= set(everything)
        assert len(set(drawn)) == min(limit or len(everything), len(everything))
        for rank, (loader, sources) in enumerate(made):
            mine = [tuple(place) for _, places in loader.sampler for place in places.tolist()]
            assert mine == drawn[rank::ranks] and sources == [0] * len(loader)


SHARDS = st.lists(st.integers(0, 12), min_size=1, max_size=12).filter(any)


def windows_of(order: WindowOrder, steps: int) -> list[tuple[int, int]]:
    return [tuple(place) for step in range(steps) for place in order.step(step).tolist()]


@given(SHARDS, st.integers(1, 20), st.integers(1, 5), st.integers(0, 9))
@max_examples(150)
def test_each_window_once_an_epoch(windows, batch, group, seed):
    found = WindowOrder(windows, batch, seed, group)
    everything = [(s, w) for s, count in enumerate(windows) for w in range(count)]
    walked = windows_of(found, -(-3 * len(everything) // batch))
    for epoch in range(3):
        some = walked[epoch * len(everything) : (epoch + 1) * len(everything)]
        assert sorted(some) == everything
        # Of the groups of shards, one after another.
        shards = {shard for shard, _ in some}
        first = {shard: next(i for i, (s, _) in enumerate(some) if s == shard) for shard in shards}
        last = {shard: max(i for i, (s, _) in enumerate(some) if s == shard) for shard in shards}
        open_at = [sum(first[s] <= i <= last[s] for s in shards) for i in range(len(some))]
        assert max(open_at) <= group


@pytest.mark.parametrize("size", [1, 2, 7, 4096, 4097, 5000, 65_537])
def test_a_permutation_has_every_number(size):
    places = np.arange(size, dtype=np.uint64)
    found = permute(places, size, np.random.default_rng(size))
    assert np.array_equal(np.sort(found), places)
    drawn = np.random.default_rng(size).permutation(size)  # at once, of few
    assert np.array_equal(found, drawn) == (size <= 4096)
    few = slice(None, None, max(1, size // 9))
    assert np.array_equal(permute(places[few], size, np.random.default_rng(size)), found[few])


def test_steps_have_the_windows_that_earlier_versions_gave_them():
    """So a run that one of them began goes on as it would have there."""
    found = permute(np.arange(5000, dtype=np.uint64), 5000, np.random.default_rng(7))
    assert found[:5].tolist() == [4465, 1111, 4527, 2960, 4448]
    mixed = WindowOrder([40, 5000, 0, 7] * 3, 100, 3, 2, 7, [0, 1, 1, 2] * 3, [0.5, 0.3, 0.2])
    walked = np.concatenate([mixed.step(step) for step in range(300)])
    assert [len(mixed.share(9, rank)[1]) for rank in range(7)] == [15, 15, 14, 14, 14, 14, 14]
    assert hashlib.sha256(walked.tobytes()).hexdigest()[:16] == "e1ff310be4bcb0ce"


def test_160_million_windows_take_little_memory():
    tracemalloc.start()
    found = WindowOrder([250_000] * 640, 1024, seed=0)
    for step in (0, 1, 156_249, 156_250, 10**7):
        found.step(step)
        found.shards_to_prefetch(step)
    assert tracemalloc.get_traced_memory()[1] < 4 << 20  # all numbers at once would be 640 MB
    tracemalloc.stop()
    found = WindowOrder([30, 20, 10, 0, 25, 15, 30], 10, seed=3, group=2)
    walk = [found.step(step)[:, 0].tolist() for step in range(60)]
    for step in range(50):
        soon = found.shards_to_prefetch(step)
        assert len(soon) <= 4 and walk[step][-1] in soon
        assert set(walk[step + 1]) <= set(soon)  # no group is smaller than a step
