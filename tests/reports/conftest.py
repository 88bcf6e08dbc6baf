"""What all tests of reports share."""

import json
from collections.abc import Callable
from typing import Any

import matplotlib.font_manager  # noqa: F401 (its first import asks a process for fonts)
import pytest

from reports.__main__ import main
from tests.fakes.records import TOKEN, Cluster, FakeRecords

TODAY = ["--today", "2026-10-01"]
UNTIL = ["--until", "2026-11-21T06:00:00Z", "--today", "2026-11-21"]


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
        assert main([command, *today, *arguments, "--json"]) == 0, capsys.readouterr().err
        return json.loads(capsys.readouterr().out)

    return run


@pytest.fixture
def rows(report) -> Callable[..., list[dict[str, Any]]]:
    """The rows of its first table."""
    return lambda *arguments: report(*arguments)["tables"][0]["rows"]


@pytest.fixture
def bill(report) -> Callable[..., dict[str, Any]]:
    """What `cost` prints of the records of a master: that of a cluster, unless it is one."""

    def ask(master: Any, *arguments: str, command: str = "cost") -> dict[str, Any]:
        with FakeRecords(master) if isinstance(master, Cluster) else master as server:
            return report(command, *UNTIL, "--master", server.url, *arguments)

    return ask


@pytest.fixture
def refused(capsys) -> Callable[..., str]:
    """The one line with which `python -m reports` refuses; nothing else is printed."""

    def run(*arguments: str) -> str:
        status = main([*arguments])
        out, err = capsys.readouterr()
        kind = {2: "error", 4: "unavailable"}[status]
        assert out == "" and err.startswith(f"reports: {kind}: ") and err.count("\n") == 1, err
        assert len(err) < 400, err
        return err

    return run
