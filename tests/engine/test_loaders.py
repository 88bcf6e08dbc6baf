"""Loaders: batches of any step at any number of slots, and how they come from worker processes."""

import math
import multiprocessing
import os
import pickle
import signal
import subprocess
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import Dataset

from detalbert.engine.loaders import PackedRows, PickledRows, RowLoader, validation_loader
from detalbert.engine.rows import validation_rows
from detalbert.engine.trial import StepTrial
from detalbert.errors import Unavailable, UserError, unknown_key
from detalbert.processes import STOP_SIGNALS
from tests.conftest import ROOT, max_examples
from tests.engine.blocked import blocked


def make_tensor(shape, dtype, first):
    numbers = first + torch.arange(math.prod(shape))
    return numbers.to(dtype).reshape(shape)


TENSORS = st.builds(
    make_tensor,
    shape=st.lists(st.integers(0, 5), max_size=3),
    dtype=st.sampled_from([torch.int64, torch.int32, torch.float32, torch.bool, torch.uint8]),
    first=st.integers(0, 9),
)
ROWS = st.lists(st.dictionaries(st.text(max_size=3), TENSORS | st.integers()), max_size=4)


def assert_same(rows, expected):
    assert [list(row) for row in rows] == [list(row) for row in expected]
    torch.testing.assert_close(rows, expected, rtol=0, atol=0)


@given(ROWS)
def test_rows_come_back_as_they_were(rows):
    pickled = PickledRows(rows)
    assert_same(pickled.rows(), rows)
    assert_same(pickle.loads(pickle.dumps(pickled)).rows(), rows)


def test_workers_give_what_the_process_itself_gives(fork):
    small = [{"ids": torch.arange(10), "n": 10}, {"ids": torch.ones(1)}]
    large = [{"ids": torch.arange(200_000), "n": 200_000}, {"ids": torch.ones(1)}]
    batches = [small, large, [], small, large]
    pinned = RowLoader(batches, range(5), 2, pin_memory=True)
    assert pinned.pin_memory
    assert pinned.prefetch_factor == 4

    for workers in (0, 2):
        loaded = list(RowLoader(batches, range(5), workers))
        for rows, expected in zip(loaded, batches, strict=True):
            assert_same(rows, expected)


@pytest.mark.parametrize(
    ("cores", "slots", "workers"), [(1, 1, 0), (2, 1, 1), (16, 1, 4), (16, 8, 1), (8, 8, 0)]
)
def test_a_rank_keeps_a_core_and_has_at_most_four_workers(cores, slots, workers, monkeypatch):
    monkeypatch.setattr("detalbert.engine.trial.cpu_count", lambda: cores)
    context = SimpleNamespace(distributed=SimpleNamespace(local_size=slots))
    trial = SimpleNamespace(hparams=SimpleNamespace(num_workers=None), context=context)
    assert StepTrial.workers(trial) == workers


def test_a_blocked_worker_ends_with_its_loader(monkeypatch, fork):
    """Torch sends SIGTERM, which a loader process does not hear, to what outlives a time-out."""
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


SCRIPT = """
import torch
from tests.engine.blocked import blocked

torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL = 0.2
batches = blocked()
"""


def test_a_blocked_worker_ends_with_the_program(script):
    ended = subprocess.run(script(SCRIPT), capture_output=True, text=True, timeout=300, cwd=ROOT)
    assert ended.stderr == ""
    assert ended.returncode == 0


class Mistaken(Dataset):
    def __getitem__(self, number):
        raise unknown_key("x", "data", known=["y"])


@pytest.mark.parametrize("workers", [0, 1])
def test_a_mistake_found_in_a_worker_is_as_in_the_process_itself(workers, fork):
    with pytest.raises(UserError, match="^data.x: unknown key; known: y$") as error:
        list(RowLoader(Mistaken(), range(2), num_workers=workers))
    assert error.value.key == "data.x"
    assert error.value.cure == "known: y"


class FakeWindows(NamedTuple):
    """Windows of which only the lengths and numbers matter."""

    lengths: np.ndarray

    def pack(self, share):
        return {"windows": share, "cu_seqlens": np.cumsum([0, *self.lengths[share]])}


MAX_TOKENS = 80
LENGTHS = st.lists(st.integers(6, 60), min_size=1, max_size=60).map(np.array)


@given(LENGTHS, st.sampled_from([1, 2, 3, 64]))
@max_examples(40)
def test_validation_rows_do_not_depend_on_the_slots(lengths, slots):
    rows = PackedRows(FakeWindows(lengths), MAX_TOKENS)
    shares = validation_rows(lengths, np.arange(len(lengths)), MAX_TOKENS)

    def rows_of(slots, slot):
        """The windows of each row of a slot."""
        loader = validation_loader(rows, shares, slots, slot)
        assert len(loader) >= 1  # Determined refuses one without a batch
        windows = []
        for batch in loader:
            windows += [row["windows"].tolist() for row in batch]
        return windows

    alone = rows_of(1, 0)
    dealt = []
    for slot in range(slots):
        dealt += rows_of(slots, slot)
    windows = np.concatenate(alone)
    assert sorted(dealt) == sorted(alone)
    assert sorted(windows.tolist()) == list(range(len(lengths)))
    assert all(sum(lengths[row]) <= MAX_TOKENS for row in alone)
    assert (np.diff(lengths[windows]) >= 0).all()  # like lengths; one chunk of questions
