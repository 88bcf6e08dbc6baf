"""Which checkpoints are a run's own: what is pruned, what is moved aside, what is resumed from."""

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from detalbert import files
from detalbert.training.manifest import find_fault, read_manifest
from detalbert.training.timeline import list_checkpoints, own_checkpoints
from tests.conftest import max_examples
from tests.fakes.runs import metrics, newest, steps_of
from tests.fakes.stub_run import StubRun

KEEP_ALL = {"save_trial_latest": 9}
KEEP_1 = {"save_trial_latest": 1, "save_trial_best": 1}


def moved_to(aside: Path) -> set[str]:
    """The names of what was moved aside from the checkpoints."""
    return {path.name for path in (aside / "checkpoints").iterdir()}


def truncate(checkpoint: Path) -> None:
    os.truncate(checkpoint / "state_dict.pth", 3)


@pytest.mark.parametrize("best", [0, 1])
def test_a_damaged_newer_checkpoint_takes_no_progress(best: int, tmp_path: Path) -> None:
    run = StubRun(tmp_path / "out", KEEP_ALL)
    run.start(32, stopped=True)
    truncate(newest(run.folder))
    run.pruning = {"save_trial_latest": 1, "save_trial_best": best}
    for until, resumed in ((29, 28), (30, 29), (31, 30)):
        assert run.start(until, stopped=True) == until
        assert run.done == resumed
        assert steps_of(run.folder)[-1] == until

    assert run.start(40, stopped=True) == 40
    assert run.done == 31
    assert (run.folder / "previous-1/checkpoints/step-00000032").is_dir()


def test_an_older_checkpoint_begins_a_new_time_line(tmp_path: Path) -> None:
    run = StubRun(tmp_path / "out", KEEP_ALL)
    aside = run.folder / "previous-1"
    run.start(20, stopped=True)
    before = steps_of(run.folder)

    run.line = 1
    run.start(10, stopped=True, resume=str(run.folder / "checkpoints/step-00000008"))

    assert run.done == 8
    assert steps_of(run.folder)[-1] == 10
    assert moved_to(aside) == {f"step-{step:08d}" for step in before if step > 8}
    assert metrics(aside)["last"]["steps"] == 18
    assert metrics(run.folder)["last"]["steps"] == 9
    assert metrics(run.folder)["best"]["steps"] <= 9
    run.start(15, stopped=True)
    assert run.done == 10  # of the new line
    assert len(metrics(run.folder)["throughput"]["starts"]) == 3


def test_what_is_not_of_the_run_is_not_counted(tmp_path: Path) -> None:
    """A folder of the user, and another run's checkpoints of fewer and of more steps."""
    other = StubRun(tmp_path / "other", KEEP_ALL)
    other.line = 5
    other.start(12, stopped=True)
    run = StubRun(tmp_path / "out", KEEP_1)
    run.start(9, stopped=True)
    checkpoint = newest(run.folder)
    for step in (3, 12):
        target = run.folder / "checkpoints" / f"step-{step:08d}"
        shutil.rmtree(target, ignore_errors=True)
        os.rename(other.folder / "checkpoints" / target.name, target)
    notes = write_notes(run.folder / "checkpoints" / "step-00000099")

    run.start(11, stopped=True, resume=str(checkpoint))
    assert run.done == 9
    assert notes.read_text() == "mine"
    assert moved_to(run.folder / "previous-1") == {"step-00000003", "step-00000012"}

    run.start(14, stopped=True)
    assert run.done == 11
    assert notes.read_text() == "mine"


def write_notes(folder: Path) -> Path:
    """A folder of the user's, with a file."""
    folder.mkdir()
    notes = folder / "notes.txt"
    notes.write_text("mine")
    return notes


def test_a_folder_in_the_way_of_a_checkpoint_is_moved_aside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = StubRun(tmp_path / "out", KEEP_1)
    run.start(5, stopped=True)
    write_notes(run.folder / "checkpoints" / "step-00000008")
    run.start(9, stopped=True)
    assert "step-00000008 is not a checkpoint of this run; it is now in" in caplog.text
    moved = run.folder / "previous-1/checkpoints/step-00000008/notes.txt"
    assert moved.read_text() == "mine"


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


def test_histories_tell_time_lines_apart(tmp_path: Path) -> None:
    run = StubRun(tmp_path / "out", KEEP_ALL)
    run.start(20, stopped=True)
    saved_steps = steps_of(run.folder)
    manifest = read_manifest(newest(run.folder))
    history = manifest["validations"]
    settings = manifest["run"]

    def own(steps: int = 20, run_of: Any = settings, validations: Any = history) -> list[int]:
        checkpoints = own_checkpoints(
            run.folder / "checkpoints", steps, run=run_of, validations=validations
        )
        return list(checkpoints)

    assert own() == saved_steps
    assert own(steps=9) == [step for step in saved_steps if step <= 9]
    assert own(run_of={**settings, "hyperparameters.max_steps": 99}) == own()
    assert own(run_of={**settings, "hyperparameters.seed": 2}) == []
    other_history = [*history[:2], {**history[2], "loss": 0.5}, *history[3:]]
    assert own(validations=other_history) == [step for step in saved_steps if step < 9]


OPERATIONS = st.one_of(
    st.tuples(st.just("stop"), st.integers(0, 9)),
    st.tuples(st.just("kill"), st.integers(0, 9)),
    st.tuples(st.just("damage"), st.integers(0, 2)),
    st.tuples(st.just("old"), st.integers(0, 9)),
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
        case "old" if checkpoints:
            step, path = checkpoints[value % len(checkpoints)]
            if find_fault(path) is None:
                run.line += 1
                stop = run.start(step + 1, stopped=True, resume=str(path))
                assert run.done == step
                return stop
    return promised


def damage(checkpoint: Path, kind: int) -> None:
    if kind == 0:
        truncate(checkpoint)
    elif kind == 1:
        (checkpoint / "manifest.json").write_text("{")
    else:
        weights = checkpoint / "state_dict.pth"
        weights.write_text(weights.read_text().upper())  # of the same size
