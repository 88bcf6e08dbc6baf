"""Loaders: batches of any step at any number of slots, and how they come from worker processes."""

import math
import multiprocessing
import os
import pickle
import signal
import subprocess
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import Dataset
from torch.utils.data._utils.pin_memory import pin_memory

from detalbert.engine import loaders
from detalbert.engine.loaders import PackedRows, PickledRows, RowLoader, validation_loader
from detalbert.engine.rows import validation_rows
from detalbert.errors import Unavailable, UnknownKey
from detalbert.processes import STOP_SIGNALS
from detalbert.squad.windows import Windows
from tests.conftest import ROOT, Script, max_examples
from tests.engine.blocked import blocked

DTYPES = st.sampled_from([torch.int64, torch.int32, torch.float32, torch.bool, torch.uint8])
SHAPES = st.lists(st.integers(0, 5), max_size=3)
TENSORS = st.builds(
    lambda shape, dtype, first: (first + torch.arange(math.prod(shape))).to(dtype).reshape(shape),
    *(SHAPES, DTYPES, st.integers(0, 9)),
)


def assert_same(found: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> None:
    assert [list(row) for row in found] == [list(row) for row in wanted]
    for one, other in zip(found, wanted, strict=True):
        for name, value in other.items():
            torch.testing.assert_close(one[name], value, rtol=0, atol=0)


@given(st.lists(st.dictionaries(st.text(max_size=3), TENSORS | st.integers()), max_size=4))
def test_rows_come_back_as_they_were(rows: list[dict[str, Any]]) -> None:
    assert_same(PickledRows(rows).rows(), rows)
    assert_same(pickle.loads(pickle.dumps(PickledRows(rows))).rows(), rows)


def test_rows_may_be_written_to_and_pinned(monkeypatch: Any) -> None:
    strides_of_0 = torch.from_numpy(np.zeros(0, np.int64))
    rows = [{"x": torch.arange(12).reshape(3, 4).t(), "y": strides_of_0, "z": torch.tensor(7)}]
    rows += [{"a": torch.zeros(2), "max_length": 3}]
    parcel, pinned = pickle.loads(pickle.dumps(PickledRows(rows))), list[int]()
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda x: pinned.append(1) or x.clone())
    for moved in (rows, parcel):  # of this process, and of a worker
        assert_same(pin_memory(moved), rows)
    assert len(pinned) == 8
    (found := parcel.rows())[0]["z"].fill_(9)
    assert found[0]["z"] == 9 and rows[0]["z"] == 7


def test_workers_give_what_the_process_itself_gives(fork: None) -> None:
    made = [[{"ids": torch.arange(n), "n": n}, {"ids": torch.ones(1)}] for n in (10, 200_000)]
    batches = [*made, [], *made]
    pinned = RowLoader(batches, range(5), 2, pin_memory=True)
    assert pinned.pin_memory and pinned.prefetch_factor == 4
    alone, shared = (list(RowLoader(batches, range(5), number)) for number in (0, 2))
    for sides in (alone, shared):
        for found, wanted in zip(sides, batches, strict=True):
            assert_same(found, wanted)


def test_a_blocked_worker_ends_with_its_loader(monkeypatch: pytest.MonkeyPatch, fork: None) -> None:
    """torch sends SIGTERM, which a loader process does not hear, to what outlives a time-out."""
    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.2)
    batches = blocked()
    (worker,) = multiprocessing.active_children()
    for number in STOP_SIGNALS:
        os.kill(worker.pid, number)
    worker.join(0.2)
    assert worker.is_alive()
    del batches
    worker.join(10)
    assert worker.exitcode == -signal.SIGKILL
    batches = blocked()
    multiprocessing.active_children()[0].kill()
    with pytest.raises(Unavailable, match="by signal: Killed.*lower hyperparameters.num_workers"):
        next(batches)


def test_a_blocked_worker_ends_with_the_program(script: Script) -> None:
    soon = "torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL = 0.2"
    source = f"import torch; from tests.engine.blocked import blocked; {soon}; batches = blocked()"
    program = script(source)
    done = subprocess.run(program, capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_mistake_found_in_a_worker_is_as_in_the_process_itself(fork: None) -> None:
    class Wrong(Dataset):
        def __getitem__(self, number: int) -> list[dict[str, Any]]:
            raise UnknownKey("x", "data", known=["y"])

    for workers in (0, 1):
        with pytest.raises(UnknownKey, match="^data.x: unknown key; known: y$") as error:
            list(RowLoader(Wrong(), range(2), num_workers=workers))
        assert (error.value.key, error.value.cure) == ("data.x", "known: y")


def make_windows(lengths: np.ndarray) -> Windows:
    """With two-token questions and contexts of `lengths` - 5."""
    context = np.asarray(lengths, np.int32) - 5
    ends = np.cumsum(context, dtype=np.int64)
    total, count = int(context.sum()), len(context)
    texts = np.arange(total, dtype=np.int32), np.zeros((total, 2), np.int32)
    questions = np.arange(2 * count, dtype=np.int32), np.arange(0, 2 * count + 1, 2)
    labels = np.zeros((2, count), np.int32)
    layout = (np.array(ids, np.int32) for ids in ([1], [2], [2], [0, 0, 0, 1, 1]))
    places = np.arange(count, dtype=np.int32), ends - context, context
    return Windows(*texts, *questions, *places, *labels, *layout)


LENGTHS = st.lists(st.integers(6, 60), min_size=1, max_size=60).map(np.array)


@given(LENGTHS, st.sampled_from([1, 2, 3, 64]))
@max_examples(40)
def test_validation_rows_do_not_depend_on_the_slots(lengths: np.ndarray, slots: int) -> None:
    rows = PackedRows(make_windows(lengths), 80)

    def rows_of(slots: int, slot: int) -> list:
        shares = validation_rows(lengths, np.arange(len(lengths)), 80)
        loader = validation_loader(rows, shares, slots, slot)
        assert len(loader) >= 1  # Determined refuses one without a batch
        return [row["windows"].tolist() for batch in loader for row in batch]

    alone = rows_of(1, 0)
    dealt = [rows_of(slots, slot) for slot in range(slots)]
    assert sorted(sum(dealt, [])) == sorted(alone)
    assert sorted(sum(alone, [])) == list(range(len(lengths)))
    assert all(sum(lengths[row]) <= 80 for row in alone)
    assert (np.diff(lengths[sum(alone, [])]) >= 0).all()  # like lengths; one chunk of questions


def test_loaders_leave_a_core_to_every_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    one_slot = ((1, 1, 0), (2, 1, 1), (4, 1, 3), (5, 1, 4), (64, 1, 4))
    for cores, processes, workers in (*one_slot, (8, 8, 0), (16, 8, 1), (1, 2, 0)):
        monkeypatch.setattr(loaders, "count_cores", lambda cores=cores: cores)
        assert loaders.default_workers(processes) == workers
