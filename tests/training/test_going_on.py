"""Runs that go on: with another metric, from an older checkpoint, after a kill, with lost files."""

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
from detalbert.engine.finite import LIMIT, FiniteSteps
from detalbert.errors import Diverged, UserError
from detalbert.inference.find import find, read_json
from detalbert.training.checkpoints import check_same_run
from detalbert.training.manifest import write_manifest
from detalbert.training.metrics import RunMetrics
from detalbert.training.metrics_file import read_metrics
from detalbert.training.timeline import list_checkpoints
from tests.conftest import max_examples, settings
from tests.fakes.runs import at_report, metrics, newest, run, steps_of, stop_after
from tests.same_bits import differences

F1 = {"metric": "f1", "smaller_is_better": False}
LOSS = {"metric": "loss", "smaller_is_better": True}
BY_LOSS = ["--set", "searcher.metric=loss", "--set", "searcher.smaller_is_better=true"]
ONE = ["--set", "checkpoint_storage={}"]


class Killed(BaseException):
    """What ends a run of this process as SIGKILL would: no checkpoint, no line."""


def kill_at(patch: pytest.MonkeyPatch, step: int) -> None:
    def kill() -> None:
        raise Killed

    at_report(patch, step, kill)


def killed(
    config: Path, output: Path, monkeypatch: pytest.MonkeyPatch, step: int, *more: str
) -> None:
    with monkeypatch.context() as patch, pytest.raises(Killed):
        kill_at(patch, step)
        run(config, output, *more)


def stopped(
    config: Path, output: Path, monkeypatch: pytest.MonkeyPatch, step: int, *more: str
) -> None:
    with monkeypatch.context() as patch:
        stop_after(patch, step)
        assert run(config, output, *more) == 143


def test_starts_beside_a_damaged_checkpoint_keep_what_they_save(
    finished: Path, copied: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """With the newest of 12 steps truncated, stops at 9, 10 and 11 are each gone on from."""
    os.truncate(newest(copied) / "state_dict.pth", 100)
    often = [*ONE, *settings(reporting_period=1)]
    for step, resumed in ((9, 8), (10, 9), (11, 10)):
        capsys.readouterr()
        stopped(finished / "tiny.yaml", copied, monkeypatch, step, *often)
        assert f"resumed at step {resumed} of 12" in capsys.readouterr().err
        assert steps_of(copied)[-1] == step
    assert run(finished / "tiny.yaml", copied) == 0
    assert differences(finished / "out", copied) == []


def test_an_older_checkpoint_is_gone_on_from_and_the_rest_is_set_aside(
    finished: Path, copied: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    config, often = finished / "tiny.yaml", settings(reporting_period=1)
    old = copied / "checkpoints" / "step-00000006"
    stopped(config, copied, monkeypatch, 7, *often, "--resume", str(old))
    said = capsys.readouterr().err
    aside = copied / "previous-1"
    assert (
        f"going on from step 6 of the run of 12 steps; its later checkpoints are now in {aside}"
        in said
    )
    assert metrics(aside)["last"]["steps"] == 12 and metrics(copied)["last"]["steps"] == 6
    assert (aside / "predictions.json").is_file() and list((aside / "tensorboard").iterdir())
    assert differences(finished / "out", aside) == []
    assert run(config, copied) == 0
    assert "resumed at step 7 of 12" in capsys.readouterr().err
    assert differences(finished / "out", copied) == []
    assert len(metrics(copied)["throughput"]["starts"]) == 3


def test_early_stopping_counts_by_the_metric_of_now(
    tiny_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """By f1, which stays 0 or falls, patience would be over; the loss falls at each validation."""
    keys = {"validation_period": 2, "checkpoint_period": 2, "reporting_period": 1}
    words = [*settings(**keys, max_steps=12), "--set", "checkpoint_storage.save_trial_latest=9"]
    stopped(tiny_config, tmp_path / "out", monkeypatch, 8, *words)
    capsys.readouterr()
    assert run(tiny_config, tmp_path / "out", *words, *BY_LOSS, *settings(early_stopping=2)) == 0
    said = capsys.readouterr().err
    line = "searcher      f1 (greater is better) -> loss (smaller is better): best validation and "
    assert said.count(f"INFO: {line}") == 1 and "stopped early" not in said
    found = metrics(tmp_path / "out")
    assert found["last"]["steps"] == 12 and found["best"]["steps"] == 12
    whole = tmp_path / "whole"
    assert run(tiny_config, whole, *words, *BY_LOSS, *settings(early_stopping=2)) == 0
    assert differences(whole, tmp_path / "out") == []
    assert find(str(tmp_path / "out")).name == "step-00000012"


@hypothesis.given(
    scores=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=9),
    cut=st.integers(0, 9),
)
def test_a_change_of_metric_counts_as_if_it_had_been_so(scores: Any, cut: int) -> None:
    """Cut anywhere, by any metric before, it is the count of an uncut run by the metric of now."""
    validations = [{"f1": float(one), "loss": float(other)} for one, other in scores]
    before, after, uncut = (EarlyStopping(by, 2, False) for by in (F1, LOSS, LOSS))
    for validation in validations[:cut]:
        before.record(validation)
    after.load_state_dict(json.loads(json.dumps(before.state_dict())))
    for validation in validations[cut:]:
        after.record(validation)
    for validation in validations:
        uncut.record(validation)
    assert (after.since, after.reached) == (uncut.since, uncut.reached)
    best, since = None, 0
    for validation in validations:
        better = best is None or validation["loss"] < best
        best, since = (validation["loss"], 0) if better else (best, since + 1)
    assert uncut.since == since


def charts(output: Path) -> dict[str, list[int]]:
    events = EventAccumulator(str(output / "tensorboard")).Reload()
    return {tag: [e.step for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_every_start_is_listed_and_no_step_is_drawn_twice(
    tiny_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before the first checkpoint, before the first validation, between checkpoints."""
    output, often = tmp_path / "out", settings(reporting_period=1)
    ends = []
    for step in (2, 5, 7, 11):
        killed(tiny_config, output, monkeypatch, step, *often)
        starts = metrics(output)["throughput"]["starts"]
        ends.append(starts[-1]["end"])
        assert starts[-1]["start"] < ends[-1]  # of its last report
    assert run(tiny_config, output, *often) == 0
    starts = metrics(output)["throughput"]["starts"]
    assert len(starts) == 5 and [start["end"] for start in starts[:4]] == ends
    assert sorted(starts, key=lambda start: start["start"]) == starts
    for tag, steps in charts(output).items():
        assert steps == sorted(set(steps)), tag
        assert steps == ([6, 12] if tag.startswith("validation") else [*range(1, 13)])


def test_lost_metrics_of_a_finished_run_are_written_at_a_start(
    finished: Path, copied: Path
) -> None:
    scores = {key: metrics(copied)[key] for key in ("best", "last")}
    (copied / "metrics.json").unlink()
    assert run(finished / "tiny.yaml", copied) == 0
    found = metrics(copied)
    assert {key: found[key] for key in scores} == scores
    assert "starts" not in found["throughput"]  # nobody knows the earlier ones


OTHER = ["[]", "5", '"x"', "{", "", '{"throughput": null}', '{"throughput": {"starts": 5}}']
OTHER += ['{"best": [], "throughput": {"starts": [1]}}', "[" * 100_000]


@pytest.mark.parametrize("content", OTHER)
def test_other_json_in_the_place_of_metrics(
    content: str, finished: Path, copied: Path, capsys: Any
) -> None:
    scores = {key: metrics(copied)[key] for key in ("best", "last")}
    (copied / "metrics.json").write_text(content)
    with pytest.raises(UserError, match=r"metrics.json: cannot be read; give one of "):
        find(str(copied))
    assert run(finished / "tiny.yaml", copied) == 0
    assert "metrics.json is not that of a run: it is now in" in capsys.readouterr().err
    assert {key: metrics(copied)[key] for key in scores} == scores
    assert (copied / "previous-1" / "metrics.json").read_text() == content


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from("throughput best last starts start end steps f1".split()),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@hypothesis.given(content=JSON)
@max_examples(300)
def test_any_json_is_read_as_metrics_or_not_at_all(content: Any, tmp_path_factory: Any) -> None:
    folder = tmp_path_factory.getbasetemp() / "metrics"
    (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
    (folder / "metrics.json").write_text(json.dumps(content))
    written = RunMetrics(folder, F1)
    trial: Any = None
    written.follow(trial, stalls=[])
    written.validations = [{"steps": 4, "f1": 1.0}]
    written.begin()
    assert read_metrics(folder) is not None
    (folder / "metrics.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match="checkpoints"):
        find(str(folder))
    assert isinstance(content, dict) == (not isinstance(_read(folder / "metrics.json"), str))


def _read(path: Path) -> Any:
    """The mapping in a file, or the line with which it is refused."""
    try:
        return read_json(path)
    except UserError as error:
        return str(error)


@pytest.mark.parametrize("words", [["perform_initial_validation=true"], ["checkpoint_policy=none"]])
def test_the_best_is_the_best_that_has_a_checkpoint(
    words: list[str], tiny_config: Path, tmp_path: Path, caplog: Any
) -> None:
    """All are equal by the number of questions, so the first is the best; it has no checkpoint."""
    more = [*ONE, "--set", words[0], "--set", "searcher.metric=total"]
    more += settings(max_steps=12, validation_period=3, checkpoint_period=6, reporting_period=3)
    assert run(tiny_config, tmp_path / "out", *more) == 0
    assert metrics(tmp_path / "out")["best"]["steps"] in (0, 3)
    assert steps_of(tmp_path / "out") == [6, 12]
    assert find(str(tmp_path / "out")).name == "step-00000006"
    assert "has no checkpoint; using step-00000006, the best saved" in caplog.text


def test_the_last_validation_is_that_of_the_last_checkpoint(
    tiny_config: Path, tmp_path: Path, caplog: Any
) -> None:
    """It comes after that checkpoint, the only one that is left."""
    more = [*ONE, "--set", "checkpoint_policy=none", "--set", "searcher.metric=total"]
    more += settings(max_steps=12, validation_period=5, checkpoint_period=6)
    assert run(tiny_config, tmp_path / "out", *more) == 0
    assert metrics(tmp_path / "out")["best"]["steps"] == 5 and steps_of(tmp_path / "out") == [12]
    assert find(str(tmp_path / "out")).name == "step-00000012"
    assert "at step 5, has no checkpoint; using step-00000012, the best saved" in caplog.text


def test_a_forked_run_has_a_best_checkpoint_of_its_own(
    finished: Path, copied: Path, tmp_path: Path
) -> None:
    (found,) = (path for step, path in list_checkpoints(copied / "checkpoints") if step == 8)
    by_number = ["--set", "searcher.metric=total"]  # the first of equals is the best
    assert run(finished / "tiny.yaml", tmp_path / "fork", "--resume", found, *by_number) == 0
    assert metrics(tmp_path / "fork")["best"]["steps"] == 6
    assert find(str(tmp_path / "fork")).name == "step-00000012"


def test_steps_that_are_not_finite_are_counted_over_a_restart(tiny_config: Path) -> None:
    bad = torch.tensor(torch.inf)
    first, second = (FiniteSteps(torch.device("cpu")) for _ in range(2))
    for step in range(1, 8):
        first.update(bad, step)
    second.resume(int(first.streak))
    for step in range(8, LIMIT):
        second.update(bad, step)
    with pytest.raises(Diverged, match=f"step {LIMIT}: no finite gradient in {LIMIT} steps"):
        second.update(bad, LIMIT)


def test_a_streak_is_in_the_checkpoint(
    tiny_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    update = FiniteSteps.update
    monkeypatch.setattr(
        FiniteSteps, "update", lambda self, norm, step: update(self, norm * torch.inf, step)
    )
    often = settings(reporting_period=1, validation_period=12)
    stopped(tiny_config, tmp_path / "out", monkeypatch, 7, *often)
    assert run(tiny_config, tmp_path / "out", *often) == 1
    assert "step 10: no finite gradient in 10 steps in a row" in capsys.readouterr().err


def test_damaged_predictions_are_those_of_the_checkpoint_again(
    finished: Path, copied: Path
) -> None:
    for name in ("predictions.json", "null_odds.json"):
        (copied / name).write_text("{")
    assert run(finished / "tiny.yaml", copied) == 0
    assert differences(finished / "out", copied) == []


@hypothesis.given(content=JSON)
@max_examples(100)
def test_a_run_s_config_of_any_content_names_what_differs_or_nothing(
    content: Any, tmp_path_factory: Any
) -> None:
    """The names in it are only for the line that refuses another run."""
    folder = tmp_path_factory.getbasetemp() / "config"
    checkpoint = folder / "checkpoints" / "step-00000004"
    checkpoint.mkdir(parents=True, exist_ok=True)
    before, now = {"data.train": "0" * 64}, {"data.train": "1" * 64}
    write_manifest(checkpoint, {"steps": 4, "run": before, "validations": []}, {})
    for config in (content, {"data": content}, {"hyperparameters": content}):
        (folder / "config.yaml").write_text(json.dumps(config))
        with pytest.raises(UserError, match="^data.train: "):
            check_same_run(checkpoint, now, {}, {"data": {"train": "mine"}})
