"""Which checkpoints are there: what is pruned, what is passed over, what is resumed from."""

import os
import tempfile
from pathlib import Path

import hypothesis
import pytest
from hypothesis import strategies as st

from detalbert.training.folder import list_checkpoints
from detalbert.training.manifest import find_fault
from tests.conftest import max_examples
from tests.fakes.runs import newest, steps_of
from tests.fakes.stub_run import StubRun

KEEP_ALL = {"save_trial_latest": 9}
KEEP_1 = {"save_trial_latest": 1, "save_trial_best": 1}


@pytest.mark.parametrize("best", [0, 1])
def test_a_damaged_newer_checkpoint_takes_no_progress(best, tmp_path):
    """Nor is one of its size, with a flipped bit, counted as the latest."""
    run = StubRun(tmp_path / "out", KEEP_ALL)
    run.start(32, stopped=True)
    damage(newest(run.folder), kind=best + 1)
    run.pruning = {"save_trial_latest": 1, "save_trial_best": best}
    for until, resumed in ((29, 28), (30, 29), (31, 30)):
        assert run.start(until, stopped=True) == until
        assert run.done == resumed
        assert until in steps_of(run.folder)

    assert run.start(40, stopped=True) == 40
    assert run.done == 31


def test_a_kill_while_pruning_leaves_no_half_checkpoint(tmp_path, monkeypatch):
    """What is being removed lies in a scratch folder already, which the next start removes."""
    run = StubRun(tmp_path / "out", KEEP_1)
    removed = []
    cleanup = tempfile.TemporaryDirectory.cleanup

    def note(scratch):
        folder = Path(scratch.name)
        removed.extend(folder.glob("step-*"))
        for _, checkpoint in list_checkpoints(folder.parent):
            assert find_fault(checkpoint) is None
        cleanup(scratch)

    monkeypatch.setattr(tempfile.TemporaryDirectory, "cleanup", note)
    run.start(20, stopped=True)
    assert len(removed) > 1


OPERATIONS = st.one_of(
    st.tuples(st.just("stop"), st.integers(0, 9)),
    st.tuples(st.just("kill"), st.integers(0, 9)),
    st.tuples(st.just("damage"), st.integers(0, 2)),
    st.tuples(st.just("length"), st.integers(0, 50)),
    st.tuples(st.just("metric"), st.sampled_from(["f1", "loss"])),
)


@hypothesis.given(
    latest=st.integers(1, 3),
    best=st.integers(0, 2),
    operations=st.lists(OPERATIONS, min_size=2, max_size=12),
)
@max_examples(40)
def test_any_sequence_keeps_progress(latest, best, operations):
    """Each start resumes at or beyond the step at which the one before said that it stopped."""
    with tempfile.TemporaryDirectory() as folder:
        pruning = {"save_trial_latest": latest, "save_trial_best": best}
        run = StubRun(Path(folder) / "out", pruning)
        promised = 0
        for kind, value in operations:
            promised = operate(run, kind, value, promised)


def operate(run, kind, value, promised):
    """Carry out an operation on a run; the step at which the next start must resume at least."""
    checkpoints = list_checkpoints(run.folder / "checkpoints")
    match kind:
        case "stop" | "kill":
            stop = run.start(promised + value, stopped=kind == "stop")
            assert run.done >= promised
            if kind == "stop" or stop == run.length:
                return stop
        case "metric":
            run.searcher = {"metric": value, "smaller_is_better": value == "loss"}
        case "length":
            run.length = max(promised + value, 1, *steps_of(run.folder))
        case "damage" if len(checkpoints) > 1:
            damage(newest(run.folder), value)
            return 0
    return promised


def damage(checkpoint, kind):
    weights = checkpoint / "state_dict.pth"
    if kind == 0:
        (checkpoint / "manifest.json").write_text("{")
    elif kind == 1:
        os.truncate(weights, 3)
    else:
        weights.write_text(weights.read_text().upper())  # of the same size
