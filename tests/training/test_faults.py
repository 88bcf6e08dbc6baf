"""Disks, folders and processes that fail beside a run: one line, and the next start resumes."""

import contextlib
import errno
import gc
import multiprocessing
import os
import shutil
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tensorboard.summary.writer.record_writer import RecordWriter

from detalbert import files
from detalbert.training import preflight
from model_def import AnswerReducer
from tests.conftest import settings
from tests.fakes.runs import at_report, refusal, run
from tests.same_bits import differences


def full(*_, **__):
    raise OSError(errno.ENOSPC, "No space left on device")


def no_room_for(name):
    """The disk is full when the file or folder `name` is to appear."""

    def replace(one, other, replace=os.replace):
        return full() if Path(other).name == name else replace(one, other)

    return lambda patch, _: patch.setattr(files.os, "replace", replace)


def at_step_6(do):
    return lambda patch, output: at_report(patch, 6, lambda: do(output))


def killed_while_reducing(patch, _):
    """The signal of a process's death arrives anywhere, here in what Determined calls."""

    def reduce(*_):
        multiprocessing.active_children()[0].kill()
        time.sleep(60)

    patch.setattr(AnswerReducer, "cross_slot_reduce", reduce)


def killed_where_errors_are_lost(patch, _):
    """As in a log's handler, a finalizer, or a library that expects an error of its own."""

    def report():
        with contextlib.suppress(Exception):
            multiprocessing.active_children()[0].kill()
            time.sleep(60)

    at_report(patch, 1, report)


def no_room_for_weights(patch, _):
    def save(*_, **__):
        raise RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 64 vs 0")

    patch.setattr(torch, "save", save)


FAULTS = {
    name: (no_room_for(name), "No space left")
    for name in ("config.yaml", "predictions.json", "metrics.json", "step-00000008")
} | {
    "tensorboard": (lambda m, _: m.setattr(RecordWriter, "write", full), "No space left"),
    "step-00000004": (lambda m, _: m.setattr(shutil, "copyfile", full), "No space left"),
    "cannot write checkpoint step-00000004": (no_room_for_weights, "the disk is full"),
    "out/": (at_step_6(shutil.rmtree), "No such file or directory"),
    "num_workers": (
        # At the first report: later the worker may have loaded all, and ended.
        lambda m, _: at_report(m, 1, lambda: multiprocessing.active_children()[0].kill()),
        "is killed by signal: Killed",
    ),
    "lower hyperparameters.num_workers": (killed_where_errors_are_lost, "by signal: Killed"),
    "hyperparameters.num_workers": (killed_while_reducing, "is killed by signal: Killed"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_one_line_and_the_run_resumes(name, finished, tmp_path, capsys, monkeypatch):
    config, output = finished / "tiny.yaml", tmp_path / "out"
    workers, (plant, reason) = settings(num_workers=int("num_workers" in name)), FAULTS[name]
    gc.disable()  # hypothesis has a callback there, in which a signal handler's error is lost
    try:
        with monkeypatch.context() as patch:
            plant(patch, output)
            line = refusal(capsys, config, output, *workers)
    finally:
        gc.enable()
    assert name in line and reason in line and "; " in line and len(line) <= 300, line
    assert ("unavailable" in line) == ("num_workers" in name)
    assert not [path for path in output.rglob(".*") if path.name not in (".lock", ".written.json")]
    assert run(config, output, *workers) == 0
    assert differences(finished / "out", output) == []


def test_room_for_checkpoints_is_looked_at_before_the_first_step(
    finished, tmp_path, capsys, monkeypatch
):
    little = SimpleNamespace(free=1000)
    monkeypatch.setattr(preflight, "shutil", SimpleNamespace(disk_usage=lambda _: little))
    line = refusal(capsys, finished / "tiny.yaml", tmp_path / "out")
    assert f"unavailable: {tmp_path / 'out'}: 0.00 GiB are free of the" in line
    assert not list(tmp_path.glob("out/checkpoints/*"))
