"""Which checkpoints are a run's own: what is pruned, what is moved aside, what is resumed from."""

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from detalbert.training.manifest import find_fault, read_manifest
from detalbert.training.timeline import list_checkpoints, own_checkpoints
from tests.conftest import max_examples
from tests.fakes.runs import metrics, newest, steps_of
from tests.fakes.stub_run import StubRun

KEEP_1 = {"save_trial_latest": 1, "save_trial_best": 1}


def truncate(checkpoint: Path) -> None:
    os.truncate(checkpoint / "state_dict.pth", 3)


@pytest.mark.parametrize("best", [0, 1])
def test_a_damaged_newer_checkpoint_takes_no_progress(best: int, tmp_path: Path) -> None:
    run = StubRun(tmp_path / "out", {"save_trial_latest": 9})
    run.start(32, stopped=True)
    truncate(newest(run.folder))
    run.pruning = {"save_trial_latest": 1, "save_trial_best": best}
    for until, resumed in ((29, 28), (30, 29), (31, 30)):
        assert run.start(until, stopped=True) == until
        assert run.done == resumed and steps_of(run.folder)[-1] == until
    assert run.start(40, stopped=True) == 40 and run.done == 31
    assert (run.folder / "previous-1/checkpoints/step-00000032").is_dir()


def test_an_older_checkpoint_begins_a_new_time_line(tmp_path: Path) -> None:
    run = StubRun(tmp_path / "out", {"save_trial_latest": 9})
    run.start(20, stopped=True)
    old = {path.name for _, path in list_checkpoints(run.folder / "checkpoints")}
    run.line = 1
    run.start(10, stopped=True, resume=str(run.folder / "checkpoints/step-00000008"))
    assert run.done == 8 and steps_of(run.folder)[-1] == 10
    aside = run.folder / "previous-1"
    moved = {path.name for path in (aside / "checkpoints").iterdir()}
    assert moved == {name for name in old if name > "step-00000008"}
    assert metrics(aside)["last"]["steps"] == 18 and metrics(run.folder)["last"]["steps"] == 9
    assert metrics(run.folder)["best"]["steps"] <= 9
    run.start(15, stopped=True)
    assert run.done == 10  # of the new line
    assert len(metrics(run.folder)["throughput"]["starts"]) == 3


def test_what_is_not_of_the_run_is_not_counted(tmp_path: Path) -> None:
    """A folder of the user, and another run's checkpoints of fewer and of more steps."""
    other = StubRun(tmp_path / "other", {"save_trial_latest": 9})
    other.line = 5
    other.start(12, stopped=True)
    run = StubRun(tmp_path / "out", KEEP_1)
    run.start(9, stopped=True)
    checkpoint = newest(run.folder)
    for step in (3, 12):
        target = run.folder / "checkpoints" / f"step-{step:08d}"
        shutil.rmtree(target, ignore_errors=True)
        os.rename(other.folder / "checkpoints" / target.name, target)
    mine = run.folder / "checkpoints" / "step-00000099"
    mine.mkdir()
    (mine / "notes.txt").write_text("mine")
    run.start(11, stopped=True, resume=str(checkpoint))
    assert run.done == 9 and (mine / "notes.txt").read_text() == "mine"
    moved = {path.name for path in (run.folder / "previous-1/checkpoints").iterdir()}
    assert moved == {"step-00000003", "step-00000012"}
    run.start(14, stopped=True)
    assert run.done == 11 and (mine / "notes.txt").read_text() == "mine"


def test_a_folder_in_the_way_of_a_checkpoint_is_moved_aside(tmp_path: Path, caplog: Any) -> None:
    run = StubRun(tmp_path / "out", KEEP_1)
    mine = run.folder / "checkpoints" / "step-00000008"
    run.start(5, stopped=True)
    mine.mkdir()
    (mine / "notes.txt").write_text("mine")
    run.start(9, stopped=True)
    assert "step-00000008 is not a checkpoint of this run; it is now in" in caplog.text
    kept = run.folder / "previous-1/checkpoints/step-00000008/notes.txt"
    assert kept.read_text() == "mine"


def test_a_kill_while_pruning_leaves_no_half_checkpoint(tmp_path: Path, monkeypatch: Any) -> None:
    """What is being removed has another name already, by which the next start finds it."""
    from detalbert import atomic

    run = StubRun(tmp_path / "out", KEEP_1)
    seen = []

    def removed(path: Path) -> None:
        if path.is_dir():
            seen.append(path.name)
            assert all(find_fault(at) is None for _, at in list_checkpoints(path.parent))

    monkeypatch.setattr(atomic, "_remove", removed)
    run.start(20, stopped=True)
    assert len(seen) > 1 and not any(name.startswith("step-") for name in seen)


def test_histories_tell_time_lines_apart(tmp_path: Path) -> None:
    run = StubRun(tmp_path / "out", {"save_trial_latest": 9})
    run.start(20, stopped=True)
    found = list_checkpoints(run.folder / "checkpoints")
    manifest = read_manifest(found[-1][1])
    history, settings = manifest["validations"], manifest["run"]
    folder = run.folder / "checkpoints"

    def own(steps: int = 20, **changes: Any) -> list[int]:
        now = {"run": settings, "validations": history, **changes}
        return [*own_checkpoints(folder, steps, **now)]

    assert own() == [step for step, _ in found]
    assert own(steps=9) == [step for step, _ in found if step <= 9]
    assert own(run={**settings, "hyperparameters.max_steps": 99}) == own()
    assert own(run={**settings, "hyperparameters.seed": 2}) == []
    other = [*history[:2], {**history[2], "loss": 0.5}, *history[3:]]
    assert own(validations=other) == [step for step, _ in found if step < 9]


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
def test_any_sequence_keeps_progress(latest: int, best: int, operations: Any) -> None:
    """Each start resumes at or beyond the step at which the one before said that it stopped."""
    with tempfile.TemporaryDirectory() as place:
        run = StubRun(Path(place) / "out", {"save_trial_latest": latest, "save_trial_best": best})
        promised = 0
        for kind, number in operations:
            checkpoints = list_checkpoints(run.folder / "checkpoints")
            if kind in ("stop", "kill"):
                stop = run.start(promised + number, kind == "stop")
                assert run.done >= promised
                promised = stop if kind == "stop" or stop == run.length else promised
                continue
            if kind == "metric":
                run.searcher = {"metric": number, "smaller_is_better": number == "loss"}
            if kind == "length":
                run.length = max(promised + number, 1, *[step for step, _ in checkpoints])
            if kind == "damage" and len(checkpoints) > 1:
                damage(checkpoints[-1][1], number)
                promised = 0
            if kind == "old" and checkpoints:
                step, path = checkpoints[number % len(checkpoints)]
                if find_fault(path) is None:
                    run.line += 1
                    promised = run.start(step + 1, True, str(path))
                    assert run.done == step


def damage(checkpoint: Path, kind: int) -> None:
    if kind == 0:
        truncate(checkpoint)
    elif kind == 1:
        (checkpoint / "manifest.json").write_text("{")
    else:
        weights = checkpoint / "state_dict.pth"
        weights.write_text(weights.read_text().upper())  # of the same size
