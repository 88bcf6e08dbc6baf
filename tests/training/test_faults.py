"""Disks, folders and processes that fail beside a run: one line, and the next start resumes."""

import errno
import multiprocessing
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from detalbert import atomic
from detalbert.engine import progress
from detalbert.training import metrics
from tests.fakes.runs import refusal, run
from tests.same_bits import differences


def full(*_: Any, **__: Any) -> Any:
    raise OSError(errno.ENOSPC, "No space left on device")


def no_room_for(name: str) -> Callable[[pytest.MonkeyPatch, Path], None]:
    """The disk is full when the file or folder `name` is to appear."""

    def plant(monkeypatch: pytest.MonkeyPatch, output: Path) -> None:
        replace = os.replace
        monkeypatch.setattr(
            atomic.os, "replace", lambda a, b: full() if Path(b).name == name else replace(a, b)
        )

    return plant


def at_step_6(do: Callable[[Path], Any]) -> Callable[[pytest.MonkeyPatch, Path], None]:
    def plant(monkeypatch: pytest.MonkeyPatch, output: Path) -> None:
        report = progress.Progress.on_training_workload_end

        def report_and_do(self: progress.Progress, *a: Any, **k: Any) -> None:
            report(self, *a, **k)
            if self.done == 6:
                do(output)

        monkeypatch.setattr(progress.Progress, "on_training_workload_end", report_and_do)

    return plant


def kill_loader(output: Path) -> None:
    multiprocessing.active_children()[0].kill()


FAULTS = {
    "config.yaml": (no_room_for("config.yaml"), "No space left"),
    "predictions.json": (no_room_for("predictions.json"), "No space left"),
    "metrics.json": (no_room_for("metrics.json"), "No space left"),
    "tensorboard": (lambda m, _: m.setattr(metrics.RecordWriter, "write", full), "No space left"),
    "step-00000008": (no_room_for("step-00000008"), "No space left"),
    "step-00000004": (lambda m, _: m.setattr(shutil, "copyfile", full), "No space left"),
    "out/": (at_step_6(shutil.rmtree), "No such file or directory"),
    "num_workers": (at_step_6(kill_loader), "is killed by signal: Killed"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_one_line_and_the_run_resumes(
    name: str,
    finished: Path,
    tmp_path: Path,
    capsys: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config, output = finished / "tiny.yaml", tmp_path / "out"
    plant, reason = FAULTS[name]
    with monkeypatch.context() as patch:
        plant(patch, output)
        line = refusal(capsys, config, output, "--set", "hyperparameters.num_workers=1")
    assert name in line and reason in line and "; " in line and len(line) <= 300, line
    assert ("unavailable" in line) == (name == "num_workers")
    assert not [path for path in output.rglob(".*") if path.name != ".lock"]
    assert run(config, output, "--set", "hyperparameters.num_workers=1") == 0
    assert differences(finished / "out", output) == []
