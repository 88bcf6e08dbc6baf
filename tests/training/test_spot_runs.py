"""Spot notices and rebalance recommendations while `train.py` runs."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from detalbert.engine import progress
from detalbert.training.checkpoints import list_checkpoints
from tests.conftest import Train, settings
from tests.fakes.metadata import MetadataServer
from tests.fakes.runs import newest, run, wait_for

NOTICE = '{"action": "terminate", "time": "2026-01-01T00:02:00Z"}'
ADVICE = '{"noticeTime": "2026-01-01T00:00:00Z"}'


def test_a_notice_makes_one_checkpoint_and_a_clean_end(
    service: MetadataServer, tiny_config: Path, tmp_path: Path, capsys: Any
) -> None:
    service.notice = NOTICE
    began = time.monotonic()
    periods = dict.fromkeys(["checkpoint_period", "validation_period", "reporting_period"], 5000)
    long = settings(max_steps=5000, spot_notice=True, **periods)
    assert run(tiny_config, tmp_path / "out", *long) == 0
    assert time.monotonic() - began < 120  # the two minutes
    said = capsys.readouterr().err
    assert "asked to stop by spot/instance-action" in said and NOTICE in said
    ((steps, folder),) = list_checkpoints(tmp_path / "out" / "checkpoints")
    assert 0 < steps < 5000
    assert json.loads((folder / "manifest.json").read_text())["steps"] == steps


ADVISED = [
    *settings(checkpoint_period=5000, validation_period=12, spot_notice=True),
    *("--set", "checkpoint_storage.save_trial_latest=9"),
]


def test_an_advice_makes_one_checkpoint_and_changes_nothing(
    service: MetadataServer,
    tiny_config: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    report = progress.Progress.on_training_workload_end

    def wait_and_report(self: progress.Progress, *a: Any, **k: Any) -> None:
        wait_for(lambda: "EC2 recommends" in caplog.text)
        report(self, *a, **k)

    assert run(tiny_config, tmp_path / "plain", *ADVISED) == 0
    service.rebalance = ADVICE
    monkeypatch.setattr(progress.Progress, "on_training_workload_end", wait_and_report)
    assert run(tiny_config, tmp_path / "advised", *ADVISED) == 0
    assert steps_saved(tmp_path / "plain") == [12]
    assert steps_saved(tmp_path / "advised") in ([3, 12], [6, 12])  # reports are at 3, 6, 9
    assert caplog.text.count("EC2 recommends") == 1
    plain, advised = (newest(tmp_path / name) for name in ("plain", "advised"))
    assert (plain / "state_dict.pth").read_bytes() == (advised / "state_dict.pth").read_bytes()
    assert (tmp_path / "plain" / "predictions.json").read_bytes() == (
        tmp_path / "advised" / "predictions.json"
    ).read_bytes()


def steps_saved(output: Path) -> list[int]:
    return [steps for steps, _ in list_checkpoints(output / "checkpoints")]


def test_an_advice_to_one_machine_makes_all_ranks_save_at_the_same_step(
    service: MetadataServer, tiny_config: Path, tmp_path: Path, train: Train
) -> None:
    service.rebalance = ADVICE
    more = settings(max_steps=60, reporting_period=2, validation_period=60)
    given = "--config", tiny_config, "--output-dir", tmp_path / "out", *ADVISED, *more
    found = {"AWS_EC2_METADATA_SERVICE_ENDPOINT": service.url, "OMP_NUM_THREADS": "1"}
    done = train(*given, processes=2, **found)
    assert done.returncode == 0, done.stderr
    early, last = steps_saved(tmp_path / "out")
    assert early % 2 == 0 and early < last == 60
    assert done.stderr.count("EC2 recommends") == 1 and "EC2 announces" not in done.stderr
