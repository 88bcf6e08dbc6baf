"""Progress: lines off a terminal, a bar on one, nothing of other ranks."""

import logging
from types import SimpleNamespace

import pytest
import tqdm.std

from detalbert import progress
from detalbert.log import quiet_libraries, start_logging
from detalbert.progress import waiting


@pytest.fixture
def sleep(monkeypatch):
    """Return a function that lets time pass."""
    start_logging()
    now = SimpleNamespace(seconds=1000.0)
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now.seconds))
    monkeypatch.setattr(tqdm.std, "time", lambda: now.seconds)

    def sleep(seconds):
        now.seconds += seconds

    return sleep


def test_off_a_terminal_a_line_comes_after_each_half_minute(sleep, capsys):
    with waiting("validation\x1b[2J", total=100, unit="batches") as bar:
        bar.iterable = range(100)
        for _ in bar:
            sleep(1.0)
        with waiting("downloading", total=4_000_000, unit="B") as inner:
            sleep(40)
            inner.update(3_000_000)
    with waiting("short"):
        sleep(4)
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(" [")[0] for line in lines] == [
        "INFO: validation\\x1b[2J",
        "INFO: validation\\x1b[2J:  30% 30/100",
        "INFO: validation\\x1b[2J:  60% 60/100",
        "INFO: validation\\x1b[2J:  90% 90/100",
        "INFO: downloading",
        "INFO: downloading:  75% 3.00M/4.00M",
        "INFO: downloading: done in 00:40",
        "INFO: validation\\x1b[2J: done in 02:20",
        "INFO: short",
    ]


def test_other_ranks_show_nothing(sleep, capsys, monkeypatch):
    monkeypatch.setenv("RANK", "3")
    with waiting("validation", total=2, unit="batches") as bar:
        bar.iterable = "ab"
        assert list(bar) == ["a", "b"]
        sleep(100)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("name", ["matplotlib.font_manager", "transformers.models", "determined"])
def test_no_library_warns_between_the_lines(name, capsys):
    """Matplotlib does while it builds its cache of fonts, in each container."""
    start_logging()
    quiet_libraries()
    logging.getLogger(name).warning("building the font cache")
    assert capsys.readouterr().err == ""
