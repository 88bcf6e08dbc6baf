"""What all tests of reports share."""

import json
from collections.abc import Callable
from typing import Any

import matplotlib.font_manager  # noqa: F401 (its first import asks a process for fonts)
import pytest

from reports.__main__ import main
from tests.fakes.http import FakeServer
from tests.fakes.records import TOKEN, Cluster, FakeRecords

TODAY = ["--today", "2026-10-01"]
UNTIL = ["--until", "2026-11-21T06:00:00Z", "--today", "2026-11-21"]
KINDS = {2: "error", 4: "unavailable"}  # of an error, by exit status


@pytest.fixture(autouse=True)
def logged_in(monkeypatch, tmp_path):
    """As ada, at the fake master, without a pause before another try."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("DET_USER", "ada")
    monkeypatch.setenv("DET_USER_TOKEN", TOKEN)
    monkeypatch.setattr("urllib3.util.retry.time.sleep", lambda _: None)


@pytest.fixture
def report(capsys) -> Callable[..., dict[str, Any]]:
    """What `python -m reports` prints as JSON; of the day TODAY, unless the arguments say so."""

    def run(command: str, *arguments: str) -> dict[str, Any]:
        today = TODAY if command != "runs" else []
        status = main([command, *today, *arguments, "--json"])
        out, err = capsys.readouterr()
        assert status == 0, err
        return json.loads(out)

    return run


@pytest.fixture
def rows(report) -> Callable[..., list[dict[str, Any]]]:
    """The rows of its first table."""
    return lambda *arguments: report(*arguments)["tables"][0]["rows"]


@pytest.fixture
def bill(report) -> Callable[..., dict[str, Any]]:
    """What `cost` prints of the records of a master: that of a cluster, unless it is one."""

    def ask(master: Cluster | FakeServer, *arguments: str, command: str = "cost") -> dict[str, Any]:
        server = FakeRecords(master) if isinstance(master, Cluster) else master
        with server:
            return report(command, *UNTIL, "--master", server.url, *arguments)

    return ask


@pytest.fixture
def refused(capsys) -> Callable[..., str]:
    """The one line with which `python -m reports` refuses; nothing else is printed."""

    def run(*arguments: str) -> str:
        status = main([*arguments])
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith(f"reports: {KINDS[status]}: "), err
        assert err.count("\n") == 1, err
        assert len(err) < 400, err
        return err

    return run
