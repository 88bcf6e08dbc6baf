"""SIGTERM and SIGINT to all processes of a run, as a scheduler or a terminal sends them."""

import multiprocessing
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from determined import core

from detalbert.training.checkpoints import find_fault, list_checkpoints
from detalbert.training.stopping import StopRequest
from tests.conftest import ROOT, Train, launcher
from tests.fakes.runs import change, newest, wait_for
from tests.leftovers import Leftovers
from tests.same_bits import differences

TERM, INT = signal.SIGTERM, signal.SIGINT


class Runs:
    """A run of so many processes with two loader processes each, into out/ of a folder."""

    def __init__(self, folder: Path, config: Path, processes: int) -> None:
        self.output, self.log, self.processes = folder / "out", folder / "log", processes
        self.words = ["--config", str(config), "--output-dir", str(self.output)]
        self.left = Leftovers(str(folder))

    def cut(self, place: str, number: signal.Signals, delay: float = 0.3) -> str:
        """Start it, send a signal to the group so many seconds after it is at `place`; returns the
        line that says how it ended."""
        command = [*launcher(self.processes), "-m", "tests.fakes.marked", *self.words]
        with self.log.open("w") as log:
            streams = {"stdout": log, "stderr": log, "env": self.left.env}
            process = subprocess.Popen(command, cwd=ROOT, start_new_session=True, **streams)
        wait_for(lambda: f"MARK {place}" in self.log.read_text() or process.poll() is not None, 300)
        time.sleep(delay)
        assert process.poll() is None, self.log.read_text()
        os.killpg(process.pid, number)
        status = process.wait(timeout=120)
        said = self.log.read_text()
        ends = re.findall("^INFO: (stopped .*); run the same command .*", said, re.MULTILINE)
        assert len(ends) == 1 and "ERROR: " not in said, said
        if self.processes == 1:  # torchrun ends with 1, and a traceback of its own
            wanted = 128 + number if " by " in ends[0] else 0
            assert status == wanted and "Traceback" not in said, said
        else:
            assert said.count("Traceback") == said.count("SignalException: ") <= 1, said
        assert self.left.after(5) == []
        assert not list(self.output.glob("checkpoints/.*"))
        if " by " not in ends[0]:
            assert find_fault(newest(self.output)) is None
            assert ends[0] == f"stopped after step {self.steps()}"
        return ends[0]

    def steps(self) -> int:
        return list_checkpoints(self.output / "checkpoints")[-1][0]


CUTS = {
    1: [("start", INT, 0), ("validation", TERM, 8)],
    2: [("checkpoint", TERM, 4)],
}


@pytest.mark.parametrize("processes", CUTS)
def test_a_signal_to_all_processes_ends_in_a_checkpoint(
    processes: int, tiny_config: Path, tmp_path: Path, train: Train, real_python: str
) -> None:
    steps = {"max_steps": 20, "validation_period": 8, "checkpoint_period": 4}
    config = change(tiny_config, num_workers=2, max_tokens_per_forward=256, **steps)
    runs = Runs(tmp_path, config, processes)
    for place, number, step in CUTS[processes]:
        ended = f"stopped after step {step}" if step else "stopped by SIGINT before the first step"
        assert runs.cut(place, number) == ended
    for output in (runs.output, tmp_path / "uncut"):
        words = ("--config", config, "--output-dir", output)
        assert train(*words, processes=processes).returncode == 0
    assert differences(runs.output, tmp_path / "uncut") == []


@pytest.mark.soak
@pytest.mark.parametrize("number", [TERM, INT])
@pytest.mark.parametrize("processes", [1, 2])
def test_at_twenty_random_moments(
    processes: int,
    number: signal.Signals,
    tiny_config: Path,
    tmp_path: Path,
    train: Train,
    real_python: str,
) -> None:
    steps = {"max_steps": 1500, "validation_period": 40, "checkpoint_period": 15}
    config = change(tiny_config, num_workers=2, reporting_period=1, **steps)
    runs, dice, ended = Runs(tmp_path, config, processes), random.Random(processes), []
    for _ in range(20):
        place, delay = dice.choice([("start", 6), ("validation", 2), ("checkpoint", 2)])
        ended.append(runs.cut(place, number, dice.uniform(0, delay)))
        shown = re.findall(r"^INFO: step (\d+)/", runs.log.read_text(), re.MULTILINE)
        assert not shown or runs.steps() - int(shown[-1]) in (0, 1)
    assert len(set(ended)) > 10, ended
    for output in (runs.output, tmp_path / "uncut"):
        words = ("--config", config, "--output-dir", output)
        assert train(*words, processes=processes).returncode == 0
    assert differences(runs.output, tmp_path / "uncut") == []


@pytest.mark.parametrize(
    ("sent", "torchrun", "exitcode"),
    [
        ([TERM, TERM, INT, TERM], False, 0),
        ([INT, TERM, TERM], False, 0),
        ([INT, INT], False, -INT),
        ([TERM, INT, INT], False, -INT),
        ([INT, INT, TERM, INT], True, 0),
    ],
)
def test_what_a_repeated_signal_does(
    sent: list[signal.Signals],
    torchrun: bool,
    exitcode: int,
    monkeypatch: pytest.MonkeyPatch,
    fork: None,
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    if not torchrun:
        monkeypatch.delenv("TORCHELASTIC_RUN_ID")

    def take() -> None:
        stop = StopRequest(core.DummyDistributedContext())
        stop.take_signals()
        for number in sent:
            os.kill(os.getpid(), number)
        sys.exit(stop.reason != sent[0].name)

    process = multiprocessing.get_context("fork").Process(target=take)
    process.start()
    process.join(60)
    assert process.exitcode == exitcode
