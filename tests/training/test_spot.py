"""The watcher of spot notices, between a real HTTP server that speaks the metadata service's
protocol and a master, both of which fail; a run that is told."""

import logging
import re
import threading
from types import SimpleNamespace
from unittest.mock import Mock

import determined
import pytest

from detalbert.training import spot
from detalbert.training.schedule import MasterStops
from tests.conftest import settings
from tests.fakes.master import TOKEN, FakeMaster
from tests.fakes.runs import run, steps_of, wait_for
from tests.training.conftest import ADVICE, NOTICE

# The log policy that excludes the machine of a notice; that of an advice is healthy.
POLICY = re.compile(".*EC2 announces: .*")


@pytest.fixture
def master(monkeypatch):
    """A master whose task this process is."""
    with FakeMaster() as master:
        info = SimpleNamespace(master_url=master.url, allocation_id="1.a.1")
        monkeypatch.setattr(determined, "get_cluster_info", lambda: info)
        monkeypatch.setenv("DET_SESSION_TOKEN", TOKEN)
        monkeypatch.setenv("DET_USER", "determined")
        yield master


class Looks(threading.Event):
    """The event that ends a watcher, which waits for it after each look; `count` of these."""

    count = 0

    def wait(self, timeout=None):
        self.count += 1
        return super().wait(timeout)


class Watch:
    """A watcher that a test starts; the notices and advices that it passed on, and its log."""

    def __init__(self, service, caplog):
        self.service = service
        self.notices = []
        self.advices = 0
        self._caplog = caplog
        self._pass_on = None
        self.watcher = spot.SpotWatcher(self._on_notice, self._on_advice)
        self.watcher.stopped = Looks()

    def _on_notice(self, notice):
        self.notices.append(notice)
        if self._pass_on is not None:
            self._pass_on(notice)

    def _on_advice(self):
        self.advices += 1

    def start(self, on_notice=None):
        """Start it; `on_notice` is called for every notice, and `notices` lists every try."""
        self._pass_on = on_notice
        self.watcher.start()

    @property
    def lines(self):
        """What the watcher has logged."""
        records = [record for record in self._caplog.records if record.name == spot.__name__]
        return [record.getMessage() for record in records]

    def failures(self):
        """What it has logged of notices that could not be passed on."""
        return [line for line in self.lines if "not passed on" in line]

    def wait_for_looks(self, count):
        """Wait until it has looked so many more times."""
        before = self.watcher.stopped.count
        wait_for(lambda: self.watcher.stopped.count >= before + count)

    def end(self, notice=NOTICE):
        """Announce; wait until the notice is passed on and the thread has ended."""
        self.service.notice = notice
        wait_for(lambda: self.notices)
        self.watcher.join(300)
        assert not self.watcher.is_alive()
        assert len([line for line in self.lines if POLICY.match(line)]) == 1


@pytest.fixture
def watch(service, monkeypatch, caplog):
    monkeypatch.setattr(spot, "PERIOD", 0.02)
    caplog.set_level(logging.INFO, "detalbert")
    watch = Watch(service, caplog)
    yield watch
    watch.watcher.stopped.set()


def test_an_advice_and_a_notice_are_told_once(watch):
    watch.start()
    watch.wait_for_looks(4)
    assert watch.notices == []
    assert watch.advices == 0

    watch.service.rebalance = ADVICE
    wait_for(lambda: watch.advices)
    watch.wait_for_looks(4)
    assert watch.notices == []
    assert watch.advices == 1
    assert not POLICY.match("".join(watch.lines))

    watch.end(NOTICE.replace(", ", ",\n  ") + "\n")
    assert watch.notices == [f"spot/instance-action {NOTICE}"]
    assert watch.advices == 1
    way, advice, notice = watch.lines
    assert way == "spot notices: read with a token"
    assert ADVICE in advice
    assert notice == f"EC2 announces: spot/instance-action {NOTICE}"


@pytest.mark.usefixtures("master")
def test_a_service_that_comes_late_is_read(watch, caplog):
    """Until then the machine is none of EC2's: one line, no warning, on a cluster too."""
    watch.service.leave()
    watch.start()
    wait_for(lambda: watch.lines)
    watch.wait_for_looks(3)
    (line,) = watch.lines
    assert watch.service.url in line
    assert [record.levelname for record in caplog.records] == ["INFO"]
    watch.service.listen()
    watch.end()


@pytest.mark.parametrize("fault", [500, "cut", "refused"])
def test_no_error_of_the_service_ends_the_watch(fault, watch, monkeypatch):
    watch.start()
    wait_for(lambda: watch.lines)
    monkeypatch.setattr(spot, "TIMEOUT", 0.3)
    watch.wait_for_looks(2)  # the old one is over
    if fault == "refused":
        watch.service.leave()
    else:
        watch.service.fault = fault
    wait_for(lambda: len(watch.lines) > 1)
    watch.wait_for_looks(3)
    watch.service.fault = ""
    monkeypatch.setattr(spot, "TIMEOUT", 60)  # after the fault: a look would wait so long
    if fault == "refused":
        watch.service.listen()
    watch.end()
    _, *failures, _ = watch.lines
    assert len(failures) <= 3  # of each kind one: an answer that is late, a reset, a refusal
    assert all(line.startswith("spot notices: no answer now (") for line in failures)


@pytest.mark.parametrize("fault", [500, "unanswered", "away"])
def test_a_notice_outlives_a_master_that_fails(
    fault,
    service,
    master,
    watch,
    monkeypatch,
):
    monkeypatch.setattr("detalbert.training.master.TIMEOUT", 1 if fault == "unanswered" else 60)
    service.notice = NOTICE
    master.pending_faults = [fault, fault]
    if fault == "away":
        master.leave()
    context = SimpleNamespace(distributed=None, _core=SimpleNamespace(preempt=Mock()))
    watch.start(MasterStops(context, searched=False).request)
    wait_for(lambda: len(watch.notices) > 2)
    if fault == "away":
        assert master.pending == 0
        master.pending_faults = []
        master.listen()
    watch.end()
    assert master.pending == 1
    assert master.preempt.is_set()
    (failure,) = watch.failures()
    if fault == 500:
        assert "a fault" in failure


def test_a_notice_makes_one_checkpoint_and_a_clean_end(
    service,
    tiny_config,
    tmp_path,
    capsys,
):
    service.notice = NOTICE
    assert run(tiny_config, tmp_path / "off", *settings(max_steps=1)) == 0
    assert len(service.asked) == 0

    long = settings(
        max_steps=5000,
        spot_notice=True,
        checkpoint_period=5000,
        validation_period=5000,
        reporting_period=5000,
    )
    assert run(tiny_config, tmp_path / "out", *long) == 143
    shown = capsys.readouterr().err
    assert "asked to stop by spot/instance-action" in shown
    assert NOTICE in shown
    (steps,) = steps_of(tmp_path / "out")
    assert 0 < steps < 5000
