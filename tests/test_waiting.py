"""What takes long is never silent for over 30 s: real threads on a clock of the test's own."""

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, call

import pytest
from tqdm import tqdm

import data
from detalbert import hub, log, waiting
from detalbert.engine.loaders import PackedRows
from detalbert.errors import Unavailable, UserError
from detalbert.log import fail, start_logging
from detalbert.waiting import clock as shown
from tests.conftest import settings
from tests.fakes.runs import run


class Clock:
    """Time that passes only in `sleep`, which gives each waiting thread its turn."""

    def __init__(self) -> None:
        self.now, self.turn = 1000.0, threading.Condition()
        self.waiters: dict[Any, float] = {}  # by event: until when it waits
        self.lines: list[tuple[float, str]] = []

    def sleep(self, seconds: float) -> None:
        end = self.now + seconds
        with self.turn:
            self.turn.wait_for(self.all_wait)
            while self.waiters and (next_turn := min(self.waiters.values())) <= end:
                self.now = next_turn
                self.turn.notify_all()
                self.turn.wait_for(self.all_wait)
            self.now = end

    def all_wait(self) -> bool:
        """Whether each thread waits, for a time that is not over."""
        waits = self.waiters.values()
        return len(waits) == len(waiting._running) and all(until > self.now for until in waits)

    def event(self) -> Any:
        ended = threading.Event()

        def wait(seconds: float) -> bool:
            with self.turn:
                self.waiters[event] = self.now + seconds
                self.turn.notify_all()
                until = self.waiters[event]
                self.turn.wait_for(lambda: ended.is_set() or self.now >= until)
                del self.waiters[event]
            return ended.is_set()

        def end() -> None:
            with self.turn:
                ended.set()
                self.turn.notify_all()

        event = Mock(wait=wait, set=end)
        return event


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    start_logging()
    clock = Clock()
    monkeypatch.setattr(waiting, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(log, "time", waiting.time)
    monkeypatch.setattr(log._HANDLER, "written", clock.now)
    threads = SimpleNamespace(Event=clock.event, Thread=threading.Thread)
    monkeypatch.setattr(waiting, "threading", threads)
    handler = logging.Handler()
    handler.emit = lambda record: clock.lines.append((clock.now, record.getMessage()))  # type: ignore[method-assign]
    logging.getLogger("detalbert").addHandler(handler)
    yield clock
    logging.getLogger("detalbert").removeHandler(handler)


def test_the_lines_of_what_takes_long(clock: Clock) -> None:
    with waiting.waiting("validation", 10, "batches") as wait:
        for _ in wait.each(range(4)):
            clock.sleep(20)
        with waiting.waiting("downloading x", 5_000_000, "B", 1_000_000) as inner:
            clock.sleep(40)
            inner.update(2_000_000)
            clock.sleep(10)
    with waiting.waiting("short"):
        clock.sleep(4)
    with pytest.raises(ValueError), waiting.waiting("wrong"):
        raise ValueError
    assert [(now - 1000, line) for now, line in clock.lines] == [
        (0, "validation: 10 batches"),
        (30, "validation: 1 of 10 batches, 4m30s left"),
        (60, "validation: 2 of 10 batches, 4m00s left"),
        (80, "downloading x: 5.0 MB"),
        (110, "downloading x: 1.0 of 5.0 MB"),
        (130, "downloading x: done in 50s"),
        (130, "validation: done in 2m10s"),
        (130, "short"),
        (134, "wrong"),
    ]
    times = {0: "0s", 59.4: "59s", 133: "2m13s", 3599.6: "1h00m", 7380: "2h03m"}
    assert [shown(seconds) for seconds in times] == list(times.values())


def test_a_run_with_slow_loaders_and_data_is_never_silent(
    clock: Clock, tiny_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(of: Any, name: str, seconds: float) -> None:
        usual: Callable[..., Any] = getattr(of, name)
        monkeypatch.setattr(of, name, lambda *a: (clock.sleep(seconds), usual(*a))[1])

    slow(data, "build_windows", 100)
    slow(PackedRows, "__getitem__", 40)
    more = ["--set", f"data.cache_dir={tmp_path}/cache", "--set", "perform_initial_validation=true"]
    assert run(tiny_config, tmp_path / "out", *more, *settings(reporting_period=9)) == 0
    times = [now for now, _ in clock.lines]
    gaps = [(b - a, clock.lines[i : i + 2]) for i, (a, b) in enumerate(pairwise(times))]
    assert max(gaps)[0] <= waiting.PERIOD, max(gaps)
    said = [line.partition(",")[0] for _, line in clock.lines]
    assert "encoding the questions of generated (train): 30s so far" in said
    assert said.count("validation: 1 of 10 batches") == 3 and "training: 3 of 12 steps" in said
    assert times[-1] - times[0] > 40 * 12


@pytest.mark.parametrize("kind", ["model", "dataset"])
def test_a_slow_hub_is_never_silent(kind: str, clock: Clock, monkeypatch: Any) -> None:
    monkeypatch.setattr(hub, "_ask_hub", lambda *a: (clock.sleep(9), ("0" * 40, None))[1])
    monkeypatch.setattr(hub, "commits", {})
    hub.load_named(lambda *a, **k: clock.sleep(50), f"org/slow-{kind}", kind)
    said = f"loading org/slow-{kind} from the hub or its cache"
    assert [line for _, line in clock.lines] == [
        said,
        f"{said}: 30s so far",
        f"{said}: done in 59s",
    ]


def test_a_terminal_has_a_bar_and_other_ranks_nothing(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    bar = Mock()
    monkeypatch.setattr(waiting, "tqdm", bar)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with waiting.waiting("downloading x", 50, "B", 10) as wait:
        wait.update(5)
        clock.sleep(1.5)
    look: Any = {"unit": "B", "unit_scale": True, "leave": False, "desc": "downloading x"}
    made = call(dynamic_ncols=True, **look, total=50, initial=10)
    assert bar.mock_calls == [made, call().refresh(), call().refresh(), call().close()]
    assert bar.return_value.n == 15
    bar.reset_mock()
    monkeypatch.setattr(waiting, "tqdm", tqdm)
    with waiting.waiting("loading"):  # a real bar, without a total
        clock.sleep(1)
    assert "loading: 00:" in capsys.readouterr().err
    clock.lines.clear()
    monkeypatch.setitem(os.environ, "RANK", "1")
    with waiting.waiting("nothing"):
        pass
    assert bar.mock_calls == [] and clock.lines == []


@pytest.mark.parametrize(
    "terminal, no_color, red", [(1, "", True), (1, "1", False), (0, "", False)]
)
def test_the_errors_of_commands(
    terminal: int, no_color: str, red: bool, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    start_logging()
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: bool(terminal))
    assert fail("x.py", UserError("a: b")) == 2
    assert fail("x.py", Unavailable("a: b")) == 4
    logging.getLogger("detalbert").warning("w")
    before, between, after = ("\033[31m", "\033[33m", "\033[0m") if red else ("", "", "")
    assert capsys.readouterr().err == (
        f"{before}x.py: error: a: b{after}\n{before}x.py: unavailable: a: b{after}\n"
        f"{between}WARNING: w{after}\n"
    )
    monkeypatch.setenv("DET_TASK_TYPE", "TRIAL")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False)
    fail("train.py", UserError("a: b"))  # the configs' log policies match it
    assert capsys.readouterr().err == "ERROR: train.py: error: a: b\n"
