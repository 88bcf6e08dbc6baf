"""Runs that go on: with another metric, from an older checkpoint, after a kill."""

import json
import os
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import torch
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from detalbert.engine.early_stopping import EarlyStopping
from detalbert.engine.history import History
from detalbert.engine.step import FiniteSteps
from detalbert.inference.find import find
from detalbert.training.timeline import list_checkpoints
from tests.conftest import settings
from tests.fakes.runs import at_report, metrics, newest, run, steps_of, stop_after
from tests.same_bits import differences

Patch = pytest.MonkeyPatch
Capture = pytest.CaptureFixture[str]
Log = pytest.LogCaptureFixture
LOSS = {"metric": "loss", "smaller_is_better": True}
BY_LOSS = ["--set", "searcher.metric=loss", "--set", "searcher.smaller_is_better=true"]
BY_NUMBER = ["--set", "searcher.metric=total"]  # of questions: the first of equals is the best
KEEP_FEW = ["--set", "checkpoint_storage={}"]
KEEP_ALL = ["--set", "checkpoint_storage.save_trial_latest=9"]
REPORT_OFTEN = settings(reporting_period=1)


class Killed(BaseException):
    """What ends a run of this process as SIGKILL would: no checkpoint, no line."""


def kill_run(config: Path, output: Path, monkeypatch: Patch, step: int, *options: str) -> None:
    """Start a run that is killed at its first report from `step` on."""

    def kill() -> None:
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        at_report(patch, step, kill)
        run(config, output, *options)


def stop_run(config: Path, output: Path, monkeypatch: Patch, step: int, *options: str) -> None:
    """Start a run that is stopped at its first report from `step` on."""
    with monkeypatch.context() as patch:
        stop_after(patch, step)
        assert run(config, output, *options) == 143


def test_starts_beside_a_damaged_checkpoint_keep_what_they_save(
    finished: Path, copied: Path, monkeypatch: Patch, capsys: Capture
) -> None:
    """With the newest of 12 steps truncated, stops at 9, 10 and 11 are each gone on from."""
    config = finished / "tiny.yaml"
    os.truncate(newest(copied) / "state_dict.pth", 100)
    for stop, resumed in ((9, 8), (10, 9), (11, 10)):
        capsys.readouterr()
        stop_run(config, copied, monkeypatch, stop, *KEEP_FEW, *REPORT_OFTEN)
        assert f"resumed at step {resumed} of 12" in capsys.readouterr().err
        assert steps_of(copied)[-1] == stop
    assert run(config, copied) == 0
    assert differences(finished / "out", copied) == []


def test_an_older_checkpoint_is_gone_on_from_and_the_rest_is_set_aside(
    finished: Path, copied: Path, monkeypatch: Patch, capsys: Capture
) -> None:
    config = finished / "tiny.yaml"
    older = copied / "checkpoints" / "step-00000006"
    aside = copied / "previous-1"

    stop_run(config, copied, monkeypatch, 7, *REPORT_OFTEN, "--resume", str(older))

    assert (
        f"going on from step 6 of the run of 12 steps; its later checkpoints are now in {aside}"
        in capsys.readouterr().err
    )
    assert metrics(aside)["last"]["steps"] == 12
    assert metrics(copied)["last"]["steps"] == 6
    assert (aside / "predictions.json").is_file()
    assert list((aside / "tensorboard").iterdir())
    assert differences(finished / "out", aside) == []

    assert run(config, copied) == 0
    assert "resumed at step 7 of 12" in capsys.readouterr().err
    assert differences(finished / "out", copied) == []
    assert len(metrics(copied)["throughput"]["starts"]) == 3


def test_early_stopping_counts_by_the_metric_of_now(
    tiny_config: Path, tmp_path: Path, monkeypatch: Patch, capsys: Capture
) -> None:
    """By f1, which stays 0 or falls, patience would be over; the loss falls at each validation."""
    changed = tmp_path / "out"
    unchanged = tmp_path / "whole"
    options = [
        *settings(max_steps=12, validation_period=2, checkpoint_period=2, reporting_period=1),
        *KEEP_ALL,
    ]
    by_loss = [*options, *BY_LOSS, *settings(early_stopping=2)]
    stop_run(tiny_config, changed, monkeypatch, 8, *options)
    capsys.readouterr()

    assert run(tiny_config, changed, *by_loss) == 0

    shown = capsys.readouterr().err
    line = "searcher      f1 (greater is better) -> loss (smaller is better): best validation and "
    assert shown.count(f"INFO: {line}") == 1
    assert "stopped early" not in shown
    assert metrics(changed)["last"]["steps"] == 12
    assert metrics(changed)["best"]["steps"] == 12
    assert find(str(changed)).name == "step-00000012"
    assert run(tiny_config, unchanged, *by_loss) == 0
    assert differences(unchanged, changed) == []


Validation = dict[str, float]


def count_by_loss(validations: list[Validation]) -> int:
    """How many validations there were since the one with the best loss."""
    best = float("inf")
    since = 0
    for validation in validations:
        since += 1
        if validation["loss"] < best:
            best = validation["loss"]
            since = 0
    return since


SCORES = st.integers(0, 5).map(float)
VALIDATION = st.fixed_dictionaries({"f1": SCORES, "loss": SCORES})


@hypothesis.given(validations=st.lists(VALIDATION, max_size=9), cut=st.integers(0, 9))
def test_a_change_of_metric_counts_as_if_it_had_been_so(
    validations: list[Validation], cut: int
) -> None:
    """Cut anywhere, by any metric before, it is the count of an uncut run by the metric of now."""
    before = History(0)
    for validation in validations[:cut]:
        before.step += 1
        before.record(validation)
    saved = json.dumps(before.state_dict())

    resumed = History(before.step)
    resumed.load_state_dict(json.loads(saved))
    for validation in validations[cut:]:
        resumed.step += 1
        resumed.record(validation)
    by_loss = EarlyStopping(resumed, LOSS, patience=2, chief=False)
    assert by_loss.since == count_by_loss(validations)
    assert by_loss.reached == (by_loss.since >= 2)


def charts(output: Path) -> dict[str, list[int]]:
    """The steps of each chart."""
    accumulator = EventAccumulator(str(output / "tensorboard")).Reload()
    steps = {}
    for tag in accumulator.Tags()["scalars"]:
        steps[tag] = [event.step for event in accumulator.Scalars(tag)]
    return steps


def test_every_start_is_listed_and_no_step_is_drawn_twice(
    tiny_config: Path, tmp_path: Path, monkeypatch: Patch
) -> None:
    """Killed before the first checkpoint, before the first validation, between checkpoints."""
    output = tmp_path / "out"
    ends = []
    for step in (2, 5, 7, 11):
        kill_run(tiny_config, output, monkeypatch, step, *REPORT_OFTEN)
        killed_start = metrics(output)["throughput"]["starts"][-1]
        ends.append(killed_start["end"])  # of its last report
        assert killed_start["start"] < killed_start["end"]

    assert run(tiny_config, output, *REPORT_OFTEN) == 0

    starts = metrics(output)["throughput"]["starts"]
    assert len(starts) == 5
    assert [start["end"] for start in starts[:4]] == ends
    begins = [start["start"] for start in starts]
    assert begins == sorted(begins)
    of_validations = {"main/loss, validation", "main/f1"}
    drawn = charts(output)
    assert of_validations < drawn.keys()
    assert min(drawn).startswith("main/")  # TensorBoard sorts them
    assert not [tag for tag in drawn if tag.endswith(("batches", "epochs"))]  # they say the axis
    for tag, steps in drawn.items():
        validated = tag in of_validations or tag.startswith("validation")
        assert steps == ([6, 12] if validated else list(range(1, 13))), tag


@pytest.mark.parametrize("option", ["perform_initial_validation=true", "checkpoint_policy=none"])
def test_without_its_checkpoint_the_best_is_the_newest(
    option: str, tiny_config: Path, tmp_path: Path, caplog: Log
) -> None:
    """All are equal by the number of questions, so the first is the best; it has no checkpoint."""
    output = tmp_path / "out"
    periods = settings(max_steps=12, validation_period=3, checkpoint_period=6, reporting_period=3)
    assert run(tiny_config, output, *KEEP_FEW, *BY_NUMBER, *periods, "--set", option) == 0
    assert metrics(output)["best"]["steps"] in (0, 3)
    assert steps_of(output) == [6, 12]
    assert find(str(output)).name == "step-00000012"
    assert "has no checkpoint; using step-00000012, the newest" in caplog.text


def test_the_last_validation_is_that_of_the_last_checkpoint(
    tiny_config: Path, tmp_path: Path, caplog: Log
) -> None:
    """It comes after that checkpoint, the only one that is left."""
    output = tmp_path / "out"
    options = [
        *KEEP_FEW,
        *BY_NUMBER,
        *settings(max_steps=12, validation_period=5, checkpoint_period=6),
    ]
    assert run(tiny_config, output, *options, "--set", "checkpoint_policy=none") == 0
    assert metrics(output)["best"]["steps"] == 5
    assert steps_of(output) == [12]
    assert find(str(output)).name == "step-00000012"
    assert "(step 5) has no checkpoint; using step-00000012, the newest" in caplog.text


def test_a_forked_run_has_a_best_checkpoint_of_its_own(
    finished: Path, copied: Path, tmp_path: Path
) -> None:
    fork = tmp_path / "fork"
    checkpoints = dict(list_checkpoints(copied / "checkpoints"))
    assert run(finished / "tiny.yaml", fork, "--resume", checkpoints[8], *BY_NUMBER) == 0
    assert metrics(fork)["best"]["steps"] == 6
    assert find(str(fork)).name == "step-00000012"


def test_a_streak_is_in_the_checkpoint(
    tiny_config: Path, tmp_path: Path, monkeypatch: Patch, capsys: Capture
) -> None:
    update = FiniteSteps.update

    def update_by_infinity(steps: FiniteSteps, norm: torch.Tensor, step: int) -> Any:
        return update(steps, norm * torch.inf, step)

    monkeypatch.setattr(FiniteSteps, "update", update_by_infinity)
    options = settings(reporting_period=1, validation_period=12)
    stop_run(tiny_config, tmp_path / "out", monkeypatch, 7, *options)
    assert run(tiny_config, tmp_path / "out", *options) == 1
    assert "step 10: no finite gradient in 10 steps in a row" in capsys.readouterr().err


def test_damaged_predictions_are_those_of_the_checkpoint_again(
    finished: Path, copied: Path
) -> None:
    for name in ("predictions.json", "null_odds.json"):
        (copied / name).write_text("{")
    assert run(finished / "tiny.yaml", copied) == 0
    assert differences(finished / "out", copied) == []
