"""SIGTERM and SIGINT to all processes of a run, as a scheduler or a terminal sends them."""

import multiprocessing
import os
import random
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
from detalbert.training.checkpoints import find_fault
from detalbert.training.schedule import LocalStops
from tests.conftest import Train, launcher
from tests.fakes.metadata import MetadataServer
from tests.fakes.runs import change, newest, steps_of
from tests.leftovers import Started
from tests.same_bits import differences
from tests.training.conftest import ADVICE

TERM, INT = signal.SIGTERM, signal.SIGINT


class Runs:
    """A run of so many processes with two loader processes each, into out/ of a folder."""

    def __init__(self, python: str, processes: int, config: Path, **steps: Any) -> None:
        change(config, num_workers=2, **steps)
        self.output, self.log = config.with_name("out"), config.with_name("log")
        self.processes = processes
        self.words = ["--config", config, "--output-dir", self.output]
        self.command = [*launcher(processes, python), "-m", "tests.broken", "marks", *self.words]

    def cut(self, place: str, number: signal.Signals, delay: float = 0.3) -> str:
        """Start it, send a signal to all so many seconds after it is at `place`; returns the line
        that says how it ended."""
        run = Started(self.command, self.log)
        run.wait_for(f"MARK {place}")
        time.sleep(delay)
        run.signal(number)
        assert run.left() == []
        ends = re.findall("^INFO: (stopped .*); run the same command .*", run.said, re.MULTILINE)
        assert len(ends) == 1 and "ERROR: " not in run.said, run.said
        early = " by " in ends[0]
        if self.processes == 1:  # torchrun ends with 1, and a traceback of its own
            assert run.main.returncode == 128 + number, run.said
        tracebacks = run.said.count("Traceback")
        assert tracebacks == run.said.count("SignalException: ") <= self.processes - 1, run.said
        assert not list(self.output.glob("checkpoints/.*"))
        asked = f"INFO: {number.name}: stopping after this step or validation\n"
        assert (asked in run.said) != early
        if not early:
            assert find_fault(newest(self.output)) is None
            assert ends[0] == f"stopped after step {steps_of(self.output)[-1]}"
        return ends[0]

    def go_on(self, train: Train) -> str:
        """To the end, where an uncut run ends with the same bits; returns what that one said."""
        for output in (self.output, self.output.with_name("uncut")):
            done = train(*self.words[:-1], output, processes=self.processes)
            assert done.returncode == 0, done.stderr
        assert differences(self.output, output) == []
        return done.stderr


CUTS = {
    1: [("start", INT, "by SIGINT before the first step"), ("validation", TERM, "after step 8")],
    2: [("checkpoint", TERM, "after step 4")],
}


@pytest.mark.parametrize("processes", CUTS)
def test_a_signal_to_all_processes_ends_in_a_checkpoint(
    processes: int, service: MetadataServer, tiny_config: Path, train: Train, python: str
) -> None:
    """Afterwards EC2 recommends to leave one machine: all ranks save once more, and go on."""
    steps = {"max_steps": 14, "validation_period": 8, "checkpoint_period": 4}
    more = {"max_tokens_per_forward": 256, "spot_notice": True}
    runs = Runs(python, processes, tiny_config, **steps, **more)
    for place, number, ended in CUTS[processes]:
        assert runs.cut(place, number) == f"stopped {ended}"
    service.rebalance = ADVICE
    runs.words[:0] = "--set", "checkpoint_storage.save_trial_latest=9"
    said = runs.go_on(train)
    early = set(steps_of(tiny_config.with_name("uncut"))) - {4, 8, 12, 14}
    assert len(early) == 1 and early < {3, 6, 9, 10}  # a report
    assert said.count("EC2 recommends") == 1 and "EC2 announces" not in said


@pytest.mark.soak
@pytest.mark.parametrize("number", [TERM, INT])
@pytest.mark.parametrize("processes", [1, 2])
def test_at_twenty_random_moments(
    processes: int, number: signal.Signals, tiny_config: Path, train: Train, real_python: str
) -> None:
    steps = {"max_steps": 1500, "validation_period": 40, "checkpoint_period": 15}
    runs = Runs(real_python, processes, tiny_config, reporting_period=1, **steps)
    dice, ended = random.Random(processes), []
    for _ in range(20):
        place, delay = dice.choice([("start", 6), ("validation", 2), ("checkpoint", 2)])
        ended.append(runs.cut(place, number, dice.uniform(0, delay)))
        shown = re.findall(r"^INFO: step (\d+)/", runs.log.read_text(), re.MULTILINE)
        assert not shown or steps_of(runs.output)[-1] - int(shown[-1]) in (0, 1)
    assert len(set(ended)) > 10, ended
    runs.go_on(train)


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
