"""What all tests of reports share."""

import json
from typing import Any

import matplotlib.font_manager  # noqa: F401 (its first import asks a process for fonts)
import pytest

from reports.__main__ import main
from tests.fakes.records import TOKEN

TODAY = ["--today", "2026-10-01"]


@pytest.fixture(autouse=True)
def logged_in(monkeypatch, tmp_path):
    """As ada, at the fake master, without a pause before another try."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("DET_USER", "ada")
    monkeypatch.setenv("DET_USER_TOKEN", TOKEN)
    monkeypatch.setattr("urllib3.util.retry.time.sleep", lambda _: None)


def report(capsys, *arguments: str) -> dict[str, Any]:
    """What `python -m reports` prints as JSON; of the day TODAY, unless the arguments say so."""
    assert main([arguments[0], *TODAY, *arguments[1:], "--json"]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


def refused(capsys, *arguments: str) -> str:
    """Return the one line with which `python -m reports` refuses; nothing else is printed."""
    status = main([*arguments])
    out, err = capsys.readouterr()
    kind = {2: "error", 4: "unavailable"}[status]
    assert out == "" and err.startswith(f"reports: {kind}: ") and err.count("\n") == 1, err
    assert len(err) < 400, err
    return err
