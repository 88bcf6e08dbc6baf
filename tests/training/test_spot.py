"""The two-minute notice, from a real HTTP server that speaks the metadata service's protocol."""

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from detalbert.training import spot
from detalbert.training.checkpoints import list_checkpoints
from tests.conftest import settings
from tests.fakes.metadata import MetadataServer
from tests.fakes.runs import run

NOTICE = '{"action": "terminate", "time": "2026-01-01T00:02:00Z"}'


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[MetadataServer]:
    with MetadataServer() as server:
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", server.url)
        monkeypatch.setattr(spot, "TIMEOUT", 60)  # this server shares a busy machine
        yield server


def wait_for(condition: Any, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert condition()


@pytest.mark.parametrize("kind", ["notice", "rebalance"])
def test_a_notice_is_told_once(
    kind: str, service: MetadataServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spot, "PERIOD", 0.02)
    told: list[str] = []
    with spot.watching(True, told.append):
        wait_for(lambda: len(service.asked) > 6)
        assert told == []
        setattr(service, kind, NOTICE)
        wait_for(lambda: told)
        asked = len(service.asked)
        time.sleep(0.2)
        assert len(service.asked) == asked  # it has done its work
    assert len(told) == 1 and NOTICE in told[0]


def test_a_token_that_ran_out_is_renewed(
    service: MetadataServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spot, "PERIOD", 0.02)
    told: list[str] = []
    watcher = spot.SpotWatcher(told.append)
    watcher._token = "an old one"
    service.notice = NOTICE
    watcher.start()
    wait_for(lambda: told)
    watcher.join(60)


def test_no_service_is_no_matter(monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    with MetadataServer() as closed:
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", closed.url)
    monkeypatch.setattr(spot, "PERIOD", 0.01)
    watcher = spot.SpotWatcher(lambda notice: None)
    watcher.start()
    watcher.join(60)
    assert not watcher.is_alive()
    assert capfd.readouterr() == ("", "")


def test_off_means_nobody_asks(service: MetadataServer) -> None:
    with spot.watching(False, lambda notice: None):
        time.sleep(0.05)
    assert service.asked == [] and threading.active_count() >= 1


def test_a_notice_makes_one_checkpoint_and_a_clean_end(
    service: MetadataServer, tiny_config: Path, tmp_path: Path, capsys: Any
) -> None:
    service.notice = NOTICE
    began = time.monotonic()
    long = settings(max_steps=5000, checkpoint_period=5000, validation_period=5000,
                    reporting_period=5000, spot_notice=True)  # fmt: skip
    assert run(tiny_config, tmp_path / "out", *long) == 0
    assert time.monotonic() - began < 120  # the two minutes
    said = capsys.readouterr().out
    assert "stopped by spot/instance-action" in said and NOTICE in said
    ((steps, folder),) = list_checkpoints(tmp_path / "out" / "checkpoints")
    assert 0 < steps < 5000
    assert json.loads((folder / "manifest.json").read_text())["steps"] == steps
