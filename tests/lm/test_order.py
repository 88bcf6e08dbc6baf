"""Every window once an epoch; a step's windows are the same at any number of ranks and after any
jump; nothing is held that grows with the corpus."""

import time
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lm import order
from lm.order import WindowOrder, permute
from tests.conftest import max_examples

SHARDS = st.lists(st.integers(0, 12), min_size=1, max_size=12).filter(any)


def windows_of(order: WindowOrder, steps: int) -> list[tuple[int, int]]:
    return [tuple(place) for step in range(steps) for place in order.step(step).tolist()]


@given(SHARDS, st.integers(1, 20), st.integers(1, 5), st.integers(0, 9))
@max_examples(150)
def test_each_window_once_an_epoch(windows: list[int], batch: int, group: int, seed: int) -> None:
    found = WindowOrder(windows, batch, seed, group)
    everything = [(s, w) for s, count in enumerate(windows) for w in range(count)]
    walked = windows_of(found, -(-3 * len(everything) // batch))
    for epoch in range(3):
        some = walked[epoch * len(everything) : (epoch + 1) * len(everything)]
        assert sorted(some) == everything
        # Of the groups of shards, one after another.
        shards = [*dict.fromkeys(shard for shard, _ in some)]
        full = [number for number in shards if windows[number]]
        assert full == shards
        first = {shard: next(i for i, (s, _) in enumerate(some) if s == shard) for shard in shards}
        last = {shard: max(i for i, (s, _) in enumerate(some) if s == shard) for shard in shards}
        open_at = [sum(first[s] <= i <= last[s] for s in shards) for i in range(len(some))]
        assert max(open_at) <= group


@given(SHARDS, st.integers(1, 20), st.integers(1, 7), st.integers(0, 60))
def test_ranks_share_a_step(windows: list[int], batch: int, ranks: int, step: int) -> None:
    found = WindowOrder(windows, batch, seed=3, group=2)
    whole = found.step(step)
    assert whole.shape == (batch, 2) and whole.dtype == np.int64
    shares = [found.share(step, rank, ranks) for rank in range(ranks)]
    sizes = [len(share) for share in shares]
    assert sum(sizes) == batch and max(sizes) - min(sizes) <= 1
    for rank, share in enumerate(shares):
        assert np.array_equal(share, whole[rank::ranks])
    # A jump: nothing was asked for before.
    order._epoch.cache_clear()
    assert np.array_equal(WindowOrder(windows, batch, seed=3, group=2).step(step), whole)


def test_the_shards_that_are_needed_soon() -> None:
    found = WindowOrder([30, 20, 10, 0, 25, 15, 30], 10, seed=3, group=2)
    walk = [found.step(step)[:, 0].tolist() for step in range(60)]
    for step in range(50):
        soon = found.soon(step)
        assert len(soon) <= 4 and walk[step][-1] in soon
        assert set(walk[step + 1]) <= set(soon)  # no group is smaller than a step


def test_another_seed_epoch_or_group_is_another_order() -> None:
    windows = [40] * 9
    base = windows_of(WindowOrder(windows, 10, seed=0, group=3), 72)
    assert base[:360] != base[360:]
    assert windows_of(WindowOrder(windows, 10, seed=1, group=3), 36) != base[:360]
    numbers = [w for _, w in base]
    assert numbers[:120] != numbers[120:240]  # groups of equal sizes
    mixed = [shard for shard, _ in base[:120]]
    assert len(set(mixed[:30])) == 3  # the shards of a group are mixed


@pytest.mark.parametrize("windows", [[1] * 50, [50], [5000]])
def test_each_level_is_drawn_by_seed_and_epoch(windows: list[int]) -> None:
    """One window in each shard shows the order of shards, one shard that of windows."""
    drawn = []
    for seed in (0, 1):
        found, total = WindowOrder(windows, 10, seed, group=1), sum(windows)
        walked = windows_of(found, 2 * total // 10)
        drawn += [tuple(walked[:total]), tuple(walked[total:])]
    assert len(set(drawn)) == 4


@pytest.mark.parametrize("size", [1, 2, 7, 4096, 4097, 5000, 65_537])
def test_a_permutation_has_every_number(size: int) -> None:
    places = np.arange(size, dtype=np.uint64)
    found = permute(places, size, np.random.default_rng(size))
    assert np.array_equal(np.sort(found), places)
    drawn = np.random.default_rng(size).permutation(size)  # at once, of few
    assert np.array_equal(found, drawn) == (size <= 4096)
    few = slice(None, None, max(1, size // 9))
    assert np.array_equal(permute(places[few], size, np.random.default_rng(size)), found[few])


def test_a_permutation_looks_random() -> None:
    """Chi-square of where the first and the last places go; neighbours have nothing in common."""
    size, cells, draws = 5000, 50, 4000
    places = np.array([0, 1, size - 1], np.uint64)
    drawn = np.array([permute(places, size, np.random.default_rng([7, i])) for i in range(draws)])
    for column in drawn.T:
        counts = np.bincount((column * cells // size).astype(int), minlength=cells)
        wanted = draws / cells
        assert ((counts - wanted) ** 2 / wanted).sum() < 49 + 4 * (2 * 49) ** 0.5  # 4 sigma
    assert abs(np.corrcoef(drawn[:, 0].astype(float), drawn[:, 1].astype(float))[0, 1]) < 0.07
    whole = permute(np.arange(size, dtype=np.uint64), size, np.random.default_rng(7)).astype(float)
    assert abs(np.corrcoef(whole[:-1], whole[1:])[0, 1]) < 0.06


def test_160_million_windows_take_no_memory_and_no_time() -> None:
    """The limits are 0.2 s and 200 MB; processor time, for the machine may be busy."""
    tracemalloc.start()
    begun = time.process_time()
    found = WindowOrder([250_000] * 640, 1024, seed=0)
    for step in (0, 1, 156_249, 156_250, 10**7):
        found.step(step)
        found.soon(step)
    assert time.process_time() - begun < 0.5
    assert tracemalloc.get_traced_memory()[1] < 4 << 20
    tracemalloc.stop()
