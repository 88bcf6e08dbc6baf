"""Cores that a process may use, and processes that end with their parent."""

import multiprocessing
import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from detalbert import processes
from tests.conftest import ROOT, launcher, settings
from tests.fakes.runs import wait_for
from tests.leftovers import Leftovers

# A parent that starts a child, prints its id and waits; the child ends only with its parent.
FAMILY = """
import multiprocessing, os, sys, time
from detalbert import processes

def child(parent, kernel):
    if not kernel:  # as where the kernel tells nobody
        processes.sys = type("other", (), {"platform": "other"})
    processes.end_with_parent(parent)
    print(os.getpid(), flush=True)
    time.sleep(600)

context = multiprocessing.get_context("fork")
context.Process(target=child, args=(os.getpid(), sys.argv[1] == "kernel")).start()
time.sleep(600)
"""


@pytest.mark.parametrize("way", ["kernel", "thread"])
def test_a_child_ends_with_its_parent(way: str, real_python: str) -> None:
    command = [real_python, "-c", FAMILY, way]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as parent:
        child = psutil.Process(int(parent.stdout.readline()))
        time.sleep(1)
        assert child.is_running()
        parent.kill()
        wait_for(lambda: not child.is_running())


def test_a_child_whose_parent_has_ended_already(fork: None) -> None:
    context = multiprocessing.get_context("fork")
    child = context.Process(target=processes.end_with_parent, args=(os.getppid(),))
    child.start()
    child.join(60)
    assert child.exitcode == 1


def test_an_affinity_takes_cores_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOKY_MAX_CPU_COUNT")
    mine = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(mine)})
    try:
        assert processes.count_cores() == 1
    finally:
        os.sched_setaffinity(0, mine)
    assert 1 <= processes.count_cores() <= len(mine)


@pytest.mark.parametrize(
    "usable, mine, busy, idle",
    [
        (2, {0, 1}, [100.0, 0.0], 1.0),  # one busy neighbour on two cores
        (2, {0, 1}, [0.0, 0.0], 2.0),
        (2, {0, 1}, [100.0, 100.0], 0.0),
        (4, set(range(64)), [100.0] * 50 + [0.0] * 14, 4.0),  # a quota of 4 on a large machine
        (1, {1}, [0.0, 75.0], 0.25),  # idle cores of others are of no use
    ],
)
def test_idle_cores(
    usable: int, mine: set[int], busy: list[float], idle: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "count_cores", lambda: usable)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: mine)
    monkeypatch.setattr(psutil, "cpu_percent", lambda seconds, percpu: busy)
    assert processes.idle_cores() == idle


def test_a_killed_run_leaves_no_loader(tmp_path: Path, real_python: str) -> None:
    """Batches of the shipped default go through the pipe, and fill it: at its parent's death
    torch's own worker then waits at its exit for ever."""
    left = Leftovers(str(tmp_path))
    with run_until_it_trains(left, tmp_path, 1, num_workers=1) as process:
        assert len(left.processes()) == 2
        process.kill()
    found = left.after(5)
    left.sweep()
    assert found == []


@pytest.mark.parametrize("victim", ["torchrun", "rank"])
def test_a_killed_torchrun_leaves_no_rank(victim: str, tmp_path: Path, real_python: str) -> None:
    left = Leftovers(str(tmp_path))
    with run_until_it_trains(left, tmp_path, 2, num_workers=1) as process:
        ranks = psutil.Process(process.pid).children()
        assert len(ranks) == 2 and len(left.processes()) == 5
        os.kill(process.pid if victim == "torchrun" else ranks[1].pid, signal.SIGKILL)
        wait_for(lambda: process.poll() is not None)
    found = left.after(5)
    left.sweep()
    assert found == []


def run_until_it_trains(
    left: Leftovers, folder: Path, ranks: int, num_workers: int
) -> subprocess.Popen:
    """The shipped default, past its first report. It writes to a file: a pipe that nobody reads
    would end it, too."""
    log = folder / "log"
    with log.open("w") as file:
        data = ["--set", f"data.cache_dir={folder}/cache", "--set", "data.max_train_examples=400"]
        data += settings(reporting_period=2, num_workers=num_workers)
        command = [*launcher(ranks), str(ROOT / "train.py"), "--output-dir", str(folder / "out")]
        streams = {"stdout": file, "stderr": subprocess.STDOUT}
        process = subprocess.Popen([*command, *data], cwd=ROOT, env=left.env, **streams)
    wait_for(lambda: "\nINFO: step " in log.read_text() or process.poll() is not None, 600)
    assert process.poll() is None, log.read_text()
    return process
