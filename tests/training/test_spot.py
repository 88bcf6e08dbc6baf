"""The watcher of spot notices, between a real HTTP server that speaks the metadata service's
protocol and a master, both of which fail."""

import logging
import re
import threading
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

import determined
import pytest

from detalbert.training import metadata, spot
from tests.fakes.master import TOKEN, FakeMaster
from tests.fakes.metadata import MetadataServer
from tests.fakes.runs import wait_for

NOTICE = '{"action": "terminate", "time": "2026-01-01T00:02:00Z"}'
ADVICE = '{"noticeTime": "2026-01-01T00:00:00Z"}'
# The log policy that excludes the machine of a notice; that of an advice is healthy.
POLICY = re.compile(".*EC2 announces: .*")


@pytest.fixture
def master(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeMaster]:
    """A master whose task this process is."""
    with FakeMaster() as master:
        info = types.SimpleNamespace(master_url=master.url, allocation_id="1.a.1")
        monkeypatch.setattr(determined, "get_cluster_info", lambda: info)
        monkeypatch.setenv("DET_SESSION_TOKEN", TOKEN)
        monkeypatch.setenv("DET_USER", "determined")
        yield master


class Watch:
    """A watcher that a test starts; what it told and said."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self.told: list[str] = []
        self.advised = 0
        self._caplog = caplog
        self.watcher = spot.SpotWatcher(self.told.append, self._advise)

    def _advise(self) -> None:
        self.advised += 1

    def tell(self, on_notice: Callable[[str], None]) -> None:
        """Have notices told to `on_notice`; `told` lists every try."""

        def tell(notice: str) -> None:
            self.told.append(notice)
            on_notice(notice)

        self.watcher.on_notice = tell

    @property
    def records(self) -> list[logging.LogRecord]:
        return [record for record in self._caplog.records if record.name == spot.__name__]

    @property
    def said(self) -> list[str]:
        return [record.getMessage() for record in self.records]

    @property
    def policy(self) -> list[str]:
        """The lines that exclude the machine."""
        return [line for line in self.said if POLICY.match(line)]

    def end(self) -> None:
        """Wait until the notice is told and the thread has ended."""
        wait_for(lambda: self.told)
        self.watcher.join(60)
        assert not self.watcher.is_alive()


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Iterator[Watch]:
    monkeypatch.setattr(spot, "PERIOD", 0.02)
    monkeypatch.setattr(spot, "SLOW_PERIOD", 0.05)
    caplog.set_level(logging.INFO, "detalbert")
    watch = Watch(caplog)
    yield watch
    watch.watcher.stopped.set()


def test_a_notice_is_told_once(service: MetadataServer, watch: Watch) -> None:
    watch.watcher.start()
    wait_for(lambda: len(service.asked) > 6)
    assert watch.told == []
    service.notice = NOTICE.replace(", ", ",\n  ") + "\n"
    watch.end()
    assert watch.told == [f"spot/instance-action {NOTICE}"] and watch.advised == 0
    assert watch.said == [
        "spot notices: read with a token (IMDSv2)",
        f"EC2 announces: spot/instance-action {NOTICE}",
    ]
    assert watch.policy == watch.said[1:]


def test_an_advice_is_told_once_and_the_notice_after_it(
    service: MetadataServer, watch: Watch
) -> None:
    service.rebalance = ADVICE
    watch.watcher.start()
    wait_for(lambda: len(service.asked) > 10)
    assert watch.advised == 1 and watch.told == [] and watch.policy == []
    assert [ADVICE in line for line in watch.said] == [False, True]
    service.notice = NOTICE
    watch.end()
    assert watch.advised == 1 and len(watch.policy) == 1 and NOTICE in watch.told[0]


@pytest.mark.parametrize("tokens", ["unanswered", "cut", 403, 404, 405])
def test_where_no_token_is_had_none_is_sent(
    tokens: str | int, service: MetadataServer, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "TIMEOUT", 0.5)
    service.tokens, service.required, service.notice = tokens, False, NOTICE
    watch.watcher.start()
    watch.end()
    assert watch.said[0].startswith("spot notices: read without a token (IMDSv1)")
    assert len(watch.policy) == 1


def test_tokens_wanted_and_none_given_is_said_with_the_remedy(
    service: MetadataServer, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "TIMEOUT", 0.5)
    service.tokens = 403
    watch.watcher.start()
    wait_for(lambda: len(service.asked) > spot.TRIES + 3)
    (line,) = watch.said
    assert "wants a token, and none arrives" in line and "hop limit to 2" in line
    service.tokens, service.notice = "given", NOTICE
    watch.end()


def test_another_token_is_taken_and_another_way(
    service: MetadataServer, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = metadata.Metadata()
    service.notice = NOTICE
    assert reader.read("spot/instance-action") == NOTICE
    service.token = "another"  # the first one ran out
    assert reader.read("spot/instance-action") == NOTICE
    service.tokens, service.required, service.token = 404, False, "a third"
    assert reader.read("spot/instance-action") == NOTICE
    assert reader.way == metadata.WITHOUT_TOKEN
    service.tokens, service.required = "given", True
    assert reader.read("spot/instance-action") == NOTICE
    assert reader.way == metadata.WITH_TOKEN
    service.required, service.fault = False, 401  # whatever is sent
    with pytest.raises(OSError, match="401"):
        reader.read("spot/instance-action")


@pytest.mark.usefixtures("master")
def test_a_service_that_comes_late_is_read(service: MetadataServer, watch: Watch) -> None:
    """Until then the machine is none of EC2's: one line, no warning, on a cluster too."""
    service.leave()
    watch.watcher.start()
    wait_for(lambda: watch.said)
    time.sleep(0.3)
    (record,) = watch.records
    assert record.levelno == logging.INFO and service.url in watch.said[0]
    assert "(Connection refused), so probably not on EC2. There: Set" in watch.said[0]
    service.notice = NOTICE
    service.listen()
    watch.end()


def test_an_absent_service_is_asked_less_often(
    service: MetadataServer, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spot, "SLOW_PERIOD", 3600)
    service.fault = 500
    watch.watcher.start()
    wait_for(lambda: watch.said)
    time.sleep(0.3)
    assert len(service.asked) == spot.TRIES and watch.watcher.is_alive()


@pytest.mark.parametrize("fault", [500, "cut", "unanswered", "slow", "refused"])
def test_no_error_of_the_service_ends_the_watch(
    fault: Any, service: MetadataServer, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spot, "SLOW_PERIOD", 3600)  # it answered once, so it is asked often
    watch.watcher.start()
    wait_for(lambda: watch.said)
    monkeypatch.setattr(metadata, "TIMEOUT", 0.3)
    asked = len(service.asked)
    wait_for(lambda: len(service.asked) > asked + 2)  # the look that began with the old one is over
    if fault == "refused":
        service.leave()
    elif fault == "slow":
        service.delay = 1.0
    else:
        service.fault = fault
    wait_for(lambda: len(watch.said) > 1)
    time.sleep(0.2)
    service.fault, service.delay, service.notice = "", 0.0, NOTICE
    monkeypatch.setattr(metadata, "TIMEOUT", 60)  # after the fault: a look would wait so long
    if fault == "refused":
        service.listen()
    watch.end()
    way, *failures, notice = watch.said
    assert len(failures) < 3  # a server that leaves resets a connection, then refuses others
    assert all(line.startswith("spot notices: no answer now (") for line in failures)
    assert POLICY.match(notice)


@pytest.mark.parametrize("fault", [500, 503, "cut", "unanswered", "away"])
def test_a_notice_outlives_a_master_that_fails(
    fault: Any,
    service: MetadataServer,
    master: FakeMaster,
    watch: Watch,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("detalbert.training.master.TIMEOUT", 1 if fault == "unanswered" else 60)
    watch.tell(spot.ThroughTheMaster().request)
    if fault == "away":
        master.leave()
    else:
        master.pending_faults = [fault, fault]
    service.notice = NOTICE
    watch.watcher.start()
    wait_for(lambda: len(watch.told) > 2)
    if fault == "away":
        assert master.pending == 0
        master.listen()
    watch.end()
    assert master.pending == 1 and master.preempt.is_set()
    assert len(watch.policy) == 1
    (failure,) = [line for line in watch.said if "not passed on" in line]
    if fault in (500, 503):
        assert "a fault" in failure


def test_each_kind_of_failure_is_said_once(service: MetadataServer, watch: Watch) -> None:
    failures: list[Exception] = [RuntimeError("first"), KeyError("k"), RuntimeError("second")]

    def tell(notice: str) -> None:
        if failures:
            raise failures.pop(0)

    watch.tell(tell)
    service.notice = NOTICE
    watch.watcher.start()
    watch.end()
    said = [line for line in watch.said if "not passed on" in line]
    assert len(said) == 2 and "first" in said[0]


def test_a_master_that_is_away_is_not_waited_for(
    master: FakeMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Determined's own session tries again for 15 s in one call."""
    master.leave()
    began = time.monotonic()
    with pytest.raises(Exception, match="refused"):
        spot.ThroughTheMaster().request(NOTICE)
    assert time.monotonic() - began < 10


def test_off_means_nobody_asks(service: MetadataServer) -> None:
    with spot.watching(False, lambda notice: None, lambda: None):
        time.sleep(0.05)
    assert service.asked == [] and threading.active_count() >= 1


def test_an_error_in_here_ends_nothing_either(service: MetadataServer, watch: Watch) -> None:
    calls: list[int] = []

    def fail_once() -> None:
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("a fault")

    watch.watcher.on_recommendation = fail_once
    service.rebalance = ADVICE
    watch.watcher.start()
    wait_for(lambda: len(calls) == 2)
    service.notice = NOTICE
    watch.end()
    assert len(calls) == 2 and "a fault" in watch.said[1]
