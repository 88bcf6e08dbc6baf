"""Windows are cut end to end; ranks share those of a step and of a validation."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from detalbert.errors import UserError
from lm.windows import LmWindows, WindowOrder, validation_loader
from tests.conftest import max_examples


class InMemory:
    """Stands for `Shards`: documents of some lengths in every shard; token n is number n of it."""

    split = "train"
    weights = None
    data = SimpleNamespace(shuffle_shards=2)

    def __init__(self, lengths):
        self.pointers = [np.cumsum([0, *documents]) for documents in lengths]
        self.shards = [{"tokens": int(pointer[-1])} for pointer in self.pointers]
        self.names = [""]
        self.sources = [0] * len(lengths)
        self.counts = {"tokens": sum(map(sum, lengths)), "text_bytes": 99}

    def columns(self, shard):
        pointer = self.pointers[shard]
        return {"tokens": np.arange(pointer[-1], dtype="<u2"), "document_ptr": pointer}


DOCUMENT_LENGTHS = st.lists(st.integers(1, 30), min_size=1, max_size=20)
LENGTHS = st.lists(DOCUMENT_LENGTHS, min_size=1, max_size=4)  # of the documents of each shard


@given(LENGTHS, st.integers(1, 20))
@max_examples(80)
def test_windows_are_cut_end_to_end(lengths, length):
    shards = InMemory([[length + 1], *lengths])
    apart = LmWindows(shards, length)
    across_documents = LmWindows(shards, length, across_documents=True)
    for shard, pointer in enumerate(shards.pointers):
        shard_tokens = pointer[-1]
        targets = []
        first = int(apart.bounds[shard])
        for number in range(int(apart.counts[shard])):
            tokens, segments = apart[first + number]
            begin = number * length
            end = begin + length + 1
            assert tokens.dtype == segments.dtype == torch.int64
            assert tokens.tolist() == list(range(begin, end))
            # A segment begins with the window and wherever a document does.
            documents = np.searchsorted(pointer, tokens.numpy(), side="right")
            _, document_tokens = np.unique(documents, return_counts=True)
            assert segments.tolist() == document_tokens.tolist()
            assert across_documents[first + number][1].tolist() == [len(tokens)]
            targets += tokens[1:].tolist()

        assert targets == list(range(1, len(targets) + 1))  # each once
        left_out = shard_tokens - 1 - len(targets)
        assert 0 <= left_out < length


def test_a_source_without_a_window_is_refused():
    shards = InMemory([[5], [50]])
    shards.names = ["few", "many"]
    shards.sources = [0, 1]
    with pytest.raises(UserError, match=r"source few fills no window of 10 \+ 1"):
        LmWindows(shards, length=10)


@given(LENGTHS, st.integers(1, 9), st.integers(1, 5))
def test_ranks_share_a_validation(lengths, length, ranks):
    shards = InMemory([[length + 1], *lengths])
    windows = LmWindows(shards, length)
    for limit in (None, 3):
        loaders = []
        for rank in range(ranks):
            loaders.append(validation_loader(windows, limit, rank, ranks, max_tokens=2 * length))
        drawn = windows.draw(limit)[0].tolist()

        assert len({len(loader) for loader, _ in loaders}) == 1
        assert drawn == sorted(drawn)
        assert set(drawn) <= set(range(len(windows)))
        assert len(set(drawn)) == min(limit or len(windows), len(windows))
        for rank, (loader, sources) in enumerate(loaders):
            assert np.concatenate(list(loader.sampler)).tolist() == drawn[rank::ranks]
            assert sources == [0] * len(loader)


@given(LENGTHS, st.integers(1, 20), st.integers(1, 5), st.integers(0, 99))
def test_ranks_share_a_step(lengths, batch, ranks, step):
    shards = InMemory([[10], *lengths])
    windows = LmWindows(shards, length=9)
    global_batch = WindowOrder(windows, batch, seed=1).share(step, 0)
    order = WindowOrder(windows, batch, seed=1, ranks=ranks)
    for rank in range(ranks):
        assert np.array_equal(order.share(step, rank), global_batch[rank::ranks])
