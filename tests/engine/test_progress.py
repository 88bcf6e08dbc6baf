"""What the chief says: exact lines on a clock of the test's own."""

import sys
import time
from types import SimpleNamespace

import pytest

from detalbert.engine import progress
from detalbert.engine.history import History
from detalbert.engine.progress import Progress, format_line
from detalbert.log import start_logging

METRICS = {"loss": 1.23456, "learning_rate_1e6": 1115.0, "examples_per_second": 12.34}


@pytest.fixture
def clock(monkeypatch):
    start_logging()
    clock = SimpleNamespace(now=1000.0)
    # Of this module alone: torch waits by the clock of all, perhaps while this test runs.
    own = SimpleNamespace(monotonic=lambda: clock.now, time=time.time)
    monkeypatch.setattr(progress, "time", own)
    return clock


def report(shown, steps, **metrics):
    """Report steps whose rate rises to 1.23e-03; the metrics have the mean."""
    rates = [{"learning_rate_1e6": 1000.0}] * (steps - 1) + [{"learning_rate_1e6": 1230.0}]
    shown.history.step += steps
    shown.on_training_workload_end({**METRICS, **metrics}, rates)


def test_the_time_left_counts_training_alone(clock, capsys):
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
        f"INFO: step 70/100  {scores}  left 01:30",  # 60 s for 20 steps, 30 are left
        f"INFO: step 80/100  {scores}  left 00:46",  # 70 s for 30, 20 are left
    ]


def test_no_time_is_left_to_tell_after_a_few_steps_and_after_the_last(clock, capsys):
    shown = Progress(History(0), 10, chief=True, logged_metrics=[])
    for steps in (1, 2, 2, 1, 4):
        clock.now += 1
        report(shown, steps)
    lines = capsys.readouterr().err.splitlines()
    assert [" left " in line for line in lines] == [False, False, False, True, False]


def test_a_gpus_use_is_shown_where_it_is_known(clock, capsys):
    shown = Progress(History(0), 100, chief=True, logged_metrics=[])
    for steps in (1, 5):
        clock.now += 1
        report(shown, steps)
    capsys.readouterr()
    report(shown, 1, mfu=0.4567, memory_gib=31.26)
    line = capsys.readouterr().err
    assert "  windows/s 12.3  left 00:15  mfu 0.46  GiB 31.3\n" in line
    report(shown, 1, memory_gib=31.26, grad_norm=1.256, tokens_per_second=1234.5)
    line = capsys.readouterr().err
    assert "  lr 1.23e-03  norm 1.26  tokens/s 1234  left 00:13  GiB 31.3\n" in line


def test_other_ranks_say_nothing(clock, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    shown = Progress(History(0), 10, chief=False, logged_metrics=["f1"])
    shown.on_training_start()
    clock.now += 1
    report(shown, 5)
    shown.on_validation_end({"f1": 1.0})
    shown.on_trial_shutdown()
    assert capsys.readouterr() == ("", "")


def test_what_does_not_fit_a_line_is_left_out():
    values = {"loss": "0.4471", "norm": "1" * 100, "mfu": "0.48"}
    assert format_line("step 40/850", values) == "step 40/850  loss 0.4471  mfu 0.48"
    assert format_line("step 40/850", values, room=24) == "step 40/850  loss 0.4471"
