"""Runs that go on: with another metric, from an older checkpoint, after a kill."""

import json
import os

import hypothesis
import pytest
import torch
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from detalbert.engine.gradients import FiniteSteps
from detalbert.engine.history import EarlyStopping, History
from detalbert.inference.find import find
from tests.conftest import settings
from tests.fakes.runs import at_report, metrics, newest, run, steps_of, stop_after
from tests.same_bits import differences

LOSS = {"metric": "loss", "smaller_is_better": True}
BY_NUMBER = ["--set", "searcher.metric=total"]  # of questions: the first of equals is the best
KEEP_FEW = ["--set", "checkpoint_storage={}"]
KEEP_ALL = ["--set", "checkpoint_storage.save_trial_latest=9"]
REPORT_OFTEN = settings(reporting_period=1)


class Killed(BaseException):
    """What ends a run of this process as SIGKILL would: no checkpoint, no line."""


def kill_run(config, output, monkeypatch, step, *options):
    """Start a run that is killed at its first report from `step` on."""

    def kill():
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        at_report(patch, step, kill)
        run(config, output, *options)


def stop_run(config, output, monkeypatch, step, *options):
    """Start a run that is stopped at its first report from `step` on."""
    with monkeypatch.context() as patch:
        stop_after(patch, step)
        assert run(config, output, *options) == 143


def test_starts_beside_a_damaged_checkpoint_keep_what_they_save(
    finished, copied, monkeypatch, capsys
):
    """With the newest of 12 steps truncated, stops at 9, 10 and 11 are each gone on from."""
    config = finished / "tiny.yaml"
    os.truncate(newest(copied) / "state_dict.pth", 100)
    for stop, resumed in ((9, 8), (10, 9), (11, 10)):
        capsys.readouterr()
        stop_run(config, copied, monkeypatch, stop, *KEEP_FEW, *REPORT_OFTEN)
        assert f"resumed at step {resumed} of 12" in capsys.readouterr().err
        assert stop in steps_of(copied)
    assert run(config, copied) == 0
    assert differences(finished / "out", copied) == []


def count_by_loss(validations):
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
def test_a_change_of_metric_counts_as_if_it_had_been_so(validations, cut):
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


def charts(output):
    """The steps of each chart."""
    accumulator = EventAccumulator(str(output / "tensorboard")).Reload()
    steps = {}
    for tag in accumulator.Tags()["scalars"]:
        steps[tag] = [event.step for event in accumulator.Scalars(tag)]
    return steps


def test_every_start_is_listed_and_no_step_is_drawn_twice(tiny_config, tmp_path, monkeypatch):
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
    assert metrics(output)["throughput"]["training_windows"] == (12 - 8) * 8  # of the last start
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
def test_without_its_checkpoint_the_best_is_the_newest(option, tiny_config, tmp_path, caplog):
    """All are equal by the number of questions, so the first is the best; it has no checkpoint."""
    output = tmp_path / "out"
    periods = settings(max_steps=12, validation_period=3, checkpoint_period=6, reporting_period=3)
    assert run(tiny_config, output, *KEEP_FEW, *BY_NUMBER, *periods, "--set", option) == 0
    assert metrics(output)["best"]["steps"] in (0, 3)
    assert steps_of(output) == [6, 12]
    assert find(str(output)).name == "step-00000012"
    assert "has no checkpoint; using step-00000012, the newest" in caplog.text


def test_a_streak_is_in_the_checkpoint(tiny_config, tmp_path, monkeypatch, capsys):
    update = FiniteSteps.update

    def update_by_infinity(steps, norm, step):
        return update(steps, norm * torch.inf, step)

    monkeypatch.setattr(FiniteSteps, "update", update_by_infinity)
    options = settings(reporting_period=1, validation_period=12)
    stop_run(tiny_config, tmp_path / "out", monkeypatch, 7, *options)
    assert run(tiny_config, tmp_path / "out", *options) == 1
    assert "step 10: no finite gradient in 10 steps in a row" in capsys.readouterr().err
