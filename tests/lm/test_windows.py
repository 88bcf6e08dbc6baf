"""Windows are the tokens of a shard, cut end to end, and their pieces end where documents do."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lm.windows import Windows
from tests.conftest import max_examples


class InMemory:
    """Stands for `Shards`: documents of some lengths in every shard; token n is number n of it."""

    split = "train"

    def __init__(self, lengths: list[list[int]]) -> None:
        self.pointers = [np.cumsum([0, *some]) for some in lengths]
        self.shards = [{"tokens": int(pointer[-1])} for pointer in self.pointers]
        self.counts = {"tokens": sum(map(sum, lengths)), "text_bytes": 99}

    def columns(self, shard: int) -> dict[str, np.ndarray]:
        pointer = self.pointers[shard]
        return {"tokens": np.arange(pointer[-1], dtype="<u2"), "document_ptr": pointer}


LENGTHS = st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=20), min_size=1, max_size=4)


@given(LENGTHS, st.integers(1, 20))
@max_examples(200)
def test_windows_are_cut_end_to_end(lengths: list[list[int]], length: int) -> None:
    shards: Any = InMemory([[length + 1], *lengths])
    windows, across = Windows(shards, length), Windows(shards, length, across_documents=True)
    for shard, counts in enumerate(shards.pointers):
        targets = []
        for number in range(int(windows.counts[shard])):
            tokens, pieces = windows[shard, number]
            first = number * length
            assert tokens.dtype == pieces.dtype == torch.int64
            assert tokens.tolist() == list(range(first, first + length + 1))
            # A piece begins with the window and wherever a document does.
            documents = np.searchsorted(counts, tokens.numpy(), side="right")
            wanted = np.unique(documents, return_counts=True)[1].tolist()
            assert pieces.tolist() == wanted
            assert across[shard, number][1].tolist() == [length + 1]
            targets += tokens[1:].tolist()
        assert targets == list(range(1, len(targets) + 1))  # each once
        assert 0 <= counts[-1] - 1 - len(targets) < length  # the tail
    with pytest.raises(IndexError, match="window -1 of"):
        windows[0, -1]


@given(LENGTHS, st.integers(1, 9), st.integers(1, 5))
def test_ranks_share_windows_in_order(lengths: list[list[int]], length: int, ranks: int) -> None:
    windows = Windows(InMemory([[length + 1], *lengths]), length)  # type: ignore[arg-type]
    everything = list(windows.in_order())
    assert len(everything) == len(windows) == sum(windows.counts.tolist())
    assert everything == sorted(set(everything))
    for rank in range(ranks):
        assert list(windows.in_order(rank, ranks)) == everything[rank::ranks]
