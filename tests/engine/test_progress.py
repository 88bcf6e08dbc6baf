"""What the chief says: exact lines on a clock of the test's own."""

import importlib
import os
import sys
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, call

import pytest
from tqdm import tqdm

from detalbert.engine import progress
from detalbert.engine.history import History
from detalbert.engine.progress import Progress, format_scores, format_step
from detalbert.log import start_logging
from detalbert.settings.metric import logged_names

METRICS = {"loss": 1.23456, "learning_rate_1e6": 1115.0, "examples_per_second": 12.34}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    start_logging()
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock.now)
    return clock


def report(shown: Progress, steps: int, **metrics: float) -> None:
    """Report steps whose rate rises to 1.23e-03; the metrics have the mean."""
    rates = [{"learning_rate_1e6": 1000.0}] * (steps - 1) + [{"learning_rate_1e6": 1230.0}]
    shown.history.step += steps
    shown.on_training_workload_end({**METRICS, **metrics}, rates)


def test_the_time_left_counts_training_alone(clock: Any, capsys: Any) -> None:
    shown = Progress(History(40), 100, chief=True, logged_metrics=["f1"])
    clock.now += 500  # before the training begins
    shown.on_training_start()
    clock.now += 20
    report(shown, 10)
    clock.now += 300
    shown.on_validation_end({"f1": 81.256})
    clock.now += 300
    shown.on_checkpoint_upload_end("some uuid")
    clock.now += 60
    report(shown, 20)
    clock.now += 10
    report(shown, 10)
    shown.on_trial_shutdown()
    scores = "loss 1.2346  lr 1.23e-03  windows/s 12.3"
    assert capsys.readouterr().err.splitlines() == [
        f"INFO: step 50/100  {scores}",
        "INFO: validation at step 50:  f1 81.26",
        "INFO: checkpoint at step 50: some uuid",
        f"INFO: step 70/100  {scores}  left 1m30s",  # 60 s for 20 steps, 30 are left
        f"INFO: step 80/100  {scores}  left 47s",  # 70 s for 30, 20 are left
    ]


def test_no_time_is_left_to_tell_after_a_few_steps(clock: Any, capsys: Any) -> None:
    shown = Progress(History(0), 100, chief=True, logged_metrics=[])
    for steps in (1, 2, 2, 1):
        clock.now += 1
        report(shown, steps)
    lines = capsys.readouterr().err.splitlines()
    assert [" left " in line for line in lines] == [False, False, False, True]


def test_the_last_step_leaves_nothing(clock: Any, capsys: Any) -> None:
    shown = Progress(History(0), 6, chief=True, logged_metrics=[])
    for steps in (1, 5):
        clock.now += 1
        report(shown, steps)
    assert "left" not in capsys.readouterr().err


def test_a_gpus_use_is_shown_where_it_is_known(clock: Any, capsys: Any) -> None:
    shown = Progress(History(0), 100, chief=True, logged_metrics=[])
    for steps in (1, 5):
        clock.now += 1
        report(shown, steps)
    capsys.readouterr()
    report(shown, 1, mfu=0.4567, memory_gib=31.26)
    line = capsys.readouterr().err
    assert "  windows/s 12.3  mfu 0.46  GiB 31.3  left" in line
    report(shown, 1, memory_gib=31.26, grad_norm=1.256, tokens_per_second=1234.5)
    line = capsys.readouterr().err
    assert "  lr 1.23e-03  norm 1.26  tokens/s 1234  GiB 31.3  left" in line


@pytest.mark.parametrize(
    "seconds, text",
    [
        (0, "0s"),
        (59.4, "59s"),
        (60, "1m00s"),
        (133, "2m13s"),
        (3599.6, "1h00m"),
        (7380, "2h03m"),
    ],
)
def test_the_time_left_has_two_units(seconds: float, text: str, clock: Any, capsys: Any) -> None:
    shown = Progress(History(0), 13, chief=True, logged_metrics=[])
    report(shown, 1)
    clock.now += seconds
    report(shown, 6)
    assert capsys.readouterr().err.endswith(f"  left {text}\n")


def test_other_ranks_say_nothing(clock: Any, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    shown = Progress(History(0), 10, chief=False, logged_metrics=["f1"])
    shown.on_training_start()
    clock.now += 1
    report(shown, 5)
    shown.on_validation_end({"f1": 1.0})
    shown.on_trial_shutdown()
    assert capsys.readouterr() == ("", "")


def test_a_terminal_has_a_bar(clock: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    bar = MagicMock()
    monkeypatch.setattr(progress, "Bar", bar)
    above: list[str] = []
    monkeypatch.setattr(tqdm, "write", lambda line, file: above.append(line))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(os, "get_terminal_size", lambda descriptor: os.terminal_size((120, 40)))
    shown = Progress(History(40), 100, chief=True, logged_metrics=["exact", "HasAns_f1"])
    shown.on_training_start()
    clock.now += 1
    report(shown, 5)
    shown.on_validation_end({"HasAns_f1": 2.0, "exact": 83.671})
    shown.on_trial_shutdown()
    values = "loss 1.2346  lr 1.23e-03  windows/s 12.3"
    shown_bar = bar.return_value.__enter__.return_value
    assert call.set_postfix_str(values) in shown_bar.mock_calls
    bar.return_value.__exit__.assert_called_once()
    assert above == ["INFO: validation at step 45:  exact 83.67  HasAns_f1 2.00"]
    metrics = {"f1": 84.267, "exact": 83.671, "total": 5.0}  # scores come in the order asked for
    line = format_scores(metrics, ["exact", "f1", "HasAns_f1"], "step 9:")
    assert line == "step 9:  exact 83.67  f1 84.27"


@pytest.mark.parametrize("workload", ["model_def", "pretrain.trial", "lm.trial"])
def test_a_validation_fits_a_line(workload: str, capsys: Any) -> None:
    """In the WebUI at 1280 pixels: 91 characters of the text stand in a line, without its level."""
    start_logging()
    names = logged_names(importlib.import_module(workload).METRICS)
    best = {"steps": 132_198, **dict.fromkeys(names, 100.0)}
    Progress(History(0), 132_198, chief=True, logged_metrics=names).say_best(best)
    (line,) = capsys.readouterr().err.splitlines()
    begin = f"INFO: best validation (step 132198):  {names[0]} 100.00  {names[1]} 100.00"
    assert line.startswith(begin)
    assert 70 < len(line.removeprefix("INFO: ")) <= 91


def test_a_step_of_a_gpu_fits_a_line() -> None:
    values = {
        "loss": "0.4471",
        "lr": "9.18e-04",
        "norm": "6.87",
        "windows/s": "1044.5",
        "mfu": "0.48",
        "GiB": "61.2",
        "left": "2h04m",
    }
    usual = format_step("step 40/850", values)
    assert usual == (
        "step 40/850  loss 0.4471  lr 9.18e-04  norm 6.87  windows/s 1044.5  mfu 0.48  left 2h04m"
    )
    short = {name: value for name, value in values.items() if name != "mfu"}
    assert "GiB 61.2" in format_step("step 40/850", short)
    long = format_step("step 104000/850000", {**values, "norm": "12345.67"})
    assert "GiB" not in long
    assert long.endswith("left 2h04m")
    assert len(long) <= 91
