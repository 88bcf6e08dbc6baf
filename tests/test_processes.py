"""Processes that end with their parent."""

import multiprocessing
import os
import time
from pathlib import Path

import psutil
import pytest

from detalbert import processes
from tests.conftest import ROOT, launcher, settings
from tests.fakes.runs import wait_for
from tests.leftovers import Started

CONTEXT = multiprocessing.get_context("fork")


def test_a_child_ends_with_its_parent(fork):
    ids = CONTEXT.SimpleQueue()

    def wait(parent):
        processes.end_with_parent(parent)
        ids.put(os.getpid())
        time.sleep(600)

    def be_parent():
        CONTEXT.Process(target=wait, args=(os.getpid(),)).start()
        time.sleep(600)

    parent = CONTEXT.Process(target=be_parent)
    parent.start()
    child = psutil.Process(ids.get())
    assert child.is_running()
    parent.kill()
    parent.join()
    wait_for(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)


def test_a_child_whose_parent_has_ended_already(fork):
    child = CONTEXT.Process(target=processes.end_with_parent, args=(os.getppid(),))
    child.start()
    child.join(300)
    assert child.exitcode == 1


def has_imported_torch(process):
    return "libtorch" in Path(f"/proc/{process.pid}/maps").read_text()


@pytest.mark.parametrize(("victim", "ranks"), [("train.py", 1), ("a rank", 2), ("torchrun", 2)])
def test_a_killed_run_leaves_nothing(victim, ranks, tmp_path, python, real_python):
    """Batches of the shipped default go through the pipe, and fill it: at its parent's death
    torch's own worker then waits at its exit for ever."""
    starter = real_python if victim == "torchrun" else python  # it must be its ranks' parent
    command = [*launcher(ranks, starter), ROOT / "train.py", "--output-dir", tmp_path / "out"]
    command += settings(reporting_period=2, num_workers=1)
    command += ["--set", "data.max_train_examples=400"]
    command += ["--set", f"data.cache_dir={tmp_path}/cache"]
    run = Started(command, tmp_path / "log")
    if victim == "torchrun":  # which its ranks know before they import torch
        run.wait_for("INFO: loading data and model")
        children = psutil.Process(run.main.pid).children()
        wait_for(lambda: all(has_imported_torch(child) for child in children))
    else:
        run.wait_for("\nINFO: step ")
    if victim == "a rank":
        parents = [process for process in run.processes() if len(process.children()) == 1]
        assert len(parents) == 2  # each with its loader
        parents[1].kill()
    else:
        assert len(run.processes()) == 3  # train.py, its loader and a command, or torchrun's ranks
        run.main.kill()
    assert run.left() == []
