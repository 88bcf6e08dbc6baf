"""SIGTERM and SIGINT to all processes of a run, as a scheduler or a terminal sends them."""

import multiprocessing
import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from determined import core

from detalbert.training import schedule
from detalbert.training.manifest import find_fault
from detalbert.training.schedule import LocalStops
from tests.conftest import Train, launcher
from tests.fakes.runs import change, newest, steps_of
from tests.leftovers import Started
from tests.same_bits import differences
from tests.training.conftest import ADVICE

TERM, INT = signal.SIGTERM, signal.SIGINT


def cut(command: list[Any], output: Path, place: str, number: signal.Signals) -> str:
    """Start a run, send a signal to all its processes when it is at `place`; returns the line that
    says how it ended."""
    run = Started(command, output.with_name("log"))
    run.wait_for(f"MARK {place}")
    time.sleep(0.3)
    run.signal(number)
    assert run.left() == []
    ends = re.findall("^INFO: (stopped .*); run the same command .*", run.said, re.MULTILINE)
    assert len(ends) == 1 and "ERROR: " not in run.said, run.said
    alone = "torch.distributed.run" not in command
    if alone:  # torchrun ends with 1, and a traceback of its own
        assert run.main.returncode == 128 + number, run.said
    # Torch's rendezvous thread may run its own finalizer, and then cannot join itself.
    ignored = run.said.count("Exception ignored in: <finalize object")
    tracebacks = run.said.count("Traceback") - ignored
    assert tracebacks == run.said.count("SignalException: ") <= (not alone), run.said
    assert not list(output.glob("checkpoints/.*"))
    asked = f"INFO: {number.name}: stopping after this step or validation, with a checkpoint\n"
    assert (asked in run.said) == (place != "start")
    if place != "start":
        assert find_fault(newest(output)) is None
        assert ends[0] == f"stopped after step {steps_of(output)[-1]}"
    return ends[0]


CUTS = {
    1: [("start", INT, "by SIGINT before the first step"), ("validation", TERM, "after step 8")],
    2: [("checkpoint", TERM, "after step 4")],
}


@pytest.mark.parametrize("processes", CUTS)
def test_a_signal_to_all_processes_ends_in_a_checkpoint(
    processes: int, service: Any, tiny_config: Path, train: Train, python: str, tmp_path: Path
) -> None:
    """Afterwards EC2 recommends to leave one machine: all ranks save once more, and go on."""
    steps = {"max_steps": 14, "validation_period": 8, "checkpoint_period": 4}
    more = {"max_tokens_per_forward": 256, "spot_notice": True}
    change(tiny_config, num_workers=2, **steps, **more)
    out, uncut, words = tmp_path / "out", tmp_path / "uncut", ["--config", tiny_config]
    command = [*launcher(processes, python), "-m", "tests.broken", "marks", *words]
    for place, number, ended in CUTS[processes]:
        said = cut([*command, "--output-dir", out], out, place, number)
        assert said == f"stopped {ended}"
    service.rebalance = ADVICE
    keep = "--set", "checkpoint_storage.save_trial_latest=9"
    for output in (out, uncut):
        done = train(*keep, *words, "--output-dir", output, processes=processes)
        assert done.returncode == 0, done.stderr
    assert differences(out, uncut) == []
    early = set(steps_of(uncut)) - {4, 8, 12, 14}
    assert len(early) == 1 and early < {3, 6, 9, 10}  # a report
    assert done.stderr.count("EC2 recommends") == 1 and "EC2 announces" not in done.stderr


@pytest.mark.parametrize("part", ["early", "alone"])
def test_a_signal_to_one_rank_is_said_by_that_rank(
    part: str, tiny_config: Path, python: str, tmp_path: Path
) -> None:
    command = [*launcher(2, python), "-m", "tests.broken", part, "--config", tiny_config]
    run = Started([*command, "--output-dir", tmp_path / "out"], tmp_path / "log")
    assert run.left() == []
    assert "ERROR: " not in run.said and run.main.returncode != 0, run.said
    if part == "early":
        assert "INFO: rank 1: stopped by SIGTERM before the first step" in run.said
        return
    assert "INFO: rank 1: SIGTERM: stopping after this step or validation" in run.said
    assert "INFO: asked to stop by SIGTERM on rank 1; a checkpoint follows\n" in run.said
    assert "INFO: stopped after step 1; " in run.said
    assert find_fault(newest(tmp_path / "out")) is None


SENT = [("TERM TERM INT TERM", 0), ("INT TERM TERM", 0), ("INT INT", -INT), ("TERM INT INT", -INT)]


@pytest.mark.parametrize("sent, status", [*SENT, ("INT INT TERM INT below torchrun", 0)])
def test_what_a_repeated_signal_does(
    sent: str, status: int, monkeypatch: pytest.MonkeyPatch, fork: None
) -> None:
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    if "torchrun" in sent:
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")

    def take() -> None:
        stop = LocalStops(core.DummyDistributedContext())
        stop.take_signals()
        names = [f"SIG{word}" for word in sent.split() if word.isupper()]
        for name in names:
            os.kill(os.getpid(), signal.Signals[name])
        sys.exit(stop.reason != names[0])

    process = multiprocessing.get_context("fork").Process(target=take)
    process.start()
    process.join(60)
    assert process.exitcode == status


@pytest.mark.parametrize("below, seconds", [(True, 1), (False, None)])
def test_a_long_stop_says_what_to_raise(
    below: bool, seconds: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At half of the time; torchrun alone has a limit."""
    timer = Mock()
    monkeypatch.setattr(schedule.threading, "Timer", timer)
    monkeypatch.setenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "1")
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    if below:
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    assert schedule.seconds_to_stop() == seconds
    schedule.warn_of_a_long_stop()
    assert timer.call_count == below
    if below:
        after, _, (said,) = timer.call_args.args
        assert after == 0.5 and "torchrun kills its ranks after 1 s" in said
