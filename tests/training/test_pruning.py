"""Which checkpoints are there: what is pruned, what is passed over, what is resumed from."""

import os
import tempfile
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from detalbert import files
from detalbert.training.folder import list_checkpoints
from detalbert.training.manifest import find_fault
from tests.conftest import max_examples
from tests.fakes.runs import newest, steps_of
from tests.fakes.stub_run import StubRun

KEEP_ALL = {"save_trial_latest": 9}
KEEP_1 = {"save_trial_latest": 1, "save_trial_best": 1}


@pytest.mark.parametrize("best", [0, 1])
def test_a_damaged_newer_checkpoint_takes_no_progress(best: int, tmp_path: Path) -> None:
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


def test_a_kill_while_pruning_leaves_no_half_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is being removed has another name already, by which the next start finds it."""
    run = StubRun(tmp_path / "out", KEEP_1)
    removed = []

    def note(path: Path) -> None:
        if path.is_dir():
            removed.append(path.name)
            for _, checkpoint in list_checkpoints(path.parent):
                assert find_fault(checkpoint) is None

    monkeypatch.setattr(files, "_remove", note)
    run.start(20, stopped=True)
    assert len(removed) > 1
    assert not any(name.startswith("step-") for name in removed)


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
def test_any_sequence_keeps_progress(
    latest: int, best: int, operations: list[tuple[str, Any]]
) -> None:
    """Each start resumes at or beyond the step at which the one before said that it stopped."""
    with tempfile.TemporaryDirectory() as folder:
        pruning = {"save_trial_latest": latest, "save_trial_best": best}
        run = StubRun(Path(folder) / "out", pruning)
        promised = 0
        for kind, value in operations:
            promised = operate(run, kind, value, promised)


def operate(run: StubRun, kind: str, value: Any, promised: int) -> int:
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


def damage(checkpoint: Path, kind: int) -> None:
    weights = checkpoint / "state_dict.pth"
    if kind == 0:
        (checkpoint / "manifest.json").write_text("{")
    elif kind == 1:
        os.truncate(weights, 3)
    else:
        weights.write_text(weights.read_text().upper())  # of the same size
