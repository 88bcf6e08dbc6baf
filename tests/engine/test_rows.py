"""Batches that travel as one buffer: what comes out is what went in, however it went."""

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import Dataset
from torch.utils.data._utils.pin_memory import pin_memory

from detalbert.engine.rows import Parcel, RowLoader

DTYPES = st.sampled_from([torch.int64, torch.int32, torch.float32, torch.bool, torch.uint8])


@st.composite
def tensors(draw: Any) -> torch.Tensor:
    shape = draw(st.lists(st.integers(0, 5), max_size=3))
    values = torch.tensor(draw(st.integers(0, 9))) + torch.arange(int(np.prod(shape)))
    return values.to(draw(DTYPES)).reshape(shape)


def assert_same(found: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> None:
    assert [list(row) for row in found] == [list(row) for row in wanted]
    for one, other in zip(found, wanted, strict=True):
        for name, value in other.items():
            if isinstance(value, torch.Tensor):
                assert one[name].dtype == value.dtype and one[name].shape == value.shape
                assert torch.equal(one[name], value)
            else:
                assert one[name] == value


@settings(deadline=None, derandomize=True)
@given(st.lists(st.dictionaries(st.text(max_size=3), tensors() | st.integers()), max_size=4))
def test_rows_come_back_as_they_were(rows: list[dict[str, Any]]) -> None:
    assert_same(Parcel(rows).rows(), rows)
    assert_same(pickle.loads(pickle.dumps(Parcel(rows))).rows(), rows)


@pytest.mark.parametrize(
    "column",
    [
        torch.arange(12).reshape(3, 4).t(),
        torch.from_numpy(np.zeros(0, np.int64)),  # its stride is 0
        torch.tensor(7),
    ],
)
def test_columns_of_unusual_layout(column: torch.Tensor) -> None:
    assert_same(Parcel([{"x": column}]).rows(), [{"x": column}])


def test_rows_share_one_buffer_and_may_be_written_to() -> None:
    rows = Parcel([{"a": torch.arange(3)}, {"b": torch.zeros(2)}]).rows()
    storages = {
        row[name].untyped_storage().data_ptr() for row, name in zip(rows, "ab", strict=True)
    }
    assert len(storages) == 1
    rows[0]["a"][0] = 7
    assert rows[0]["a"].tolist() == [7, 1, 2] and rows[1]["b"].tolist() == [0, 0]


def test_pinning_keeps_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    pinned = []

    def pin(self: torch.Tensor, device: Any = None) -> torch.Tensor:
        pinned.append(len(self))
        return self.clone()

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    rows = [{"a": torch.arange(3), "max_length": 3}, {"a": torch.arange(2), "max_length": 2}]
    assert_same(pin_memory(Parcel(rows)).rows(), rows)
    assert len(pinned) == 1


class Made(Dataset):
    """Batches of two rows, `size` int64 tokens each."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __getitem__(self, number: int) -> list[dict[str, Any]]:
        tokens = torch.arange(self.size) * (number + 1)
        return [{"input_ids": tokens, "max_length": 9}, {"input_ids": tokens[:1], "max_length": 1}]


@pytest.mark.parametrize("size", [10, 200_000])  # through the pipe, through shared memory
def test_workers_give_what_the_process_itself_gives(size: int) -> None:
    assert isinstance(Parcel(Made(size)[0]).buffer, np.ndarray) == (size == 10)
    alone = list(RowLoader(Made(size), range(5)))
    shared = list(RowLoader(Made(size), range(5), num_workers=2))
    assert len(alone) == len(shared) == 5
    for found, wanted in zip(shared, alone, strict=True):
        assert_same(found, wanted)


def test_a_batch_without_rows() -> None:
    class Nothing(Made):
        def __getitem__(self, number: int) -> list[dict[str, Any]]:
            return []

    assert list(RowLoader(Nothing(0), range(2), num_workers=1)) == [[], []]
