"""`profile_steps`: what it prints and leaves, and that the run does not notice."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from detalbert.engine.profiling import StepProfile
from detalbert.errors import UserError
from tests.conftest import settings
from tests.fakes.runs import run
from tests.same_bits import differences

CPU = torch.device("cpu")


def test_a_profile_is_written_and_changes_no_bit(
    tiny_config: Path, tmp_path: Path, capsys: Any
) -> None:
    common = settings(num_workers=1, max_steps=6, validation_period=5)
    common += ["--set", "data.max_validation_examples=4"]
    assert run(tiny_config, tmp_path / "without", *common) == 0
    assert "profile of" not in capsys.readouterr().err
    assert run(tiny_config, tmp_path / "with", *common, *settings(profile_steps=3)) == 0
    shown = capsys.readouterr().err
    assert shown.count("profile of 3 steps:\n") == 1
    assert "Self CPU time total: " in shown
    assert "aten::" in shown
    assert "USDT" not in shown
    (path,) = map(Path, re.findall("^INFO: trace: (.*)$", shown, re.MULTILINE))
    assert path.parent == tmp_path / "with" / "tensorboard"
    assert path.name.endswith(".pt.trace.json")
    assert differences(tmp_path / "without", tmp_path / "with") == []


def take(profile: StepProfile, steps: int) -> None:
    for _ in range(steps):
        with profile.step(), profile.mark("all_reduce"):
            torch.ones(2).sum()


def test_a_stopped_run_stops_its_profile(tmp_path: Path) -> None:
    profile = StepProfile(9, 12, tmp_path, CPU)
    take(profile, 4)
    profile.on_trial_shutdown()
    assert not torch.autograd._profiler_enabled()


def test_a_trace_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    profile = StepProfile(1, 4, tmp_path / "file" / "traces", CPU)
    take(profile, 3)
    with pytest.raises(UserError, match="hyperparameters.profile_steps: .*cannot write the trace"):
        take(profile, 1)
