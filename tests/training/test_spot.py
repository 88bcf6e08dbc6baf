"""The watcher of spot notices, between a real HTTP server that speaks the metadata service's
protocol and a master, both of which fail; a run that is told."""

import logging
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import determined
import pytest

from detalbert.training import spot
from detalbert.training.schedule import MasterStops
from tests.conftest import settings
from tests.fakes.master import TOKEN, FakeMaster
from tests.fakes.metadata import MetadataServer
from tests.fakes.runs import run, steps_of, wait_for
from tests.training.conftest import ADVICE, NOTICE

Patch = pytest.MonkeyPatch
# The log policy that excludes the machine of a notice; that of an advice is healthy.
POLICY = re.compile(".*EC2 announces: .*")


@pytest.fixture
def master(monkeypatch: Patch) -> Iterator[FakeMaster]:
    """A master whose task this process is."""
    with FakeMaster() as master:
        info = SimpleNamespace(master_url=master.url, allocation_id="1.a.1")
        monkeypatch.setattr(determined, "get_cluster_info", lambda: info)
        monkeypatch.setenv("DET_SESSION_TOKEN", TOKEN)
        monkeypatch.setenv("DET_USER", "determined")
        yield master


class Watch:
    """A watcher that a test starts; what it told and said."""

    def __init__(self, service: MetadataServer, caplog: pytest.LogCaptureFixture) -> None:
        self.service = service
        self.told: list[str] = []
        self.advised: list[int] = []
        self._caplog = caplog
        self.watcher = spot.SpotWatcher(self.told.append, lambda: self.advised.append(1))

    def start(self, on_notice: Callable[[str], None] | None = None) -> None:
        """Start it; notices are told to `on_notice`, and `told` lists every try."""
        if on_notice:
            self.watcher.on_notice = lambda notice: (self.told.append(notice), on_notice(notice))
        self.watcher.start()

    @property
    def said(self) -> list[str]:
        records = [record for record in self._caplog.records if record.name == spot.__name__]
        return [record.getMessage() for record in records]

    def end(self, notice: str = NOTICE) -> None:
        """Announce; wait until the notice is told and the thread has ended."""
        self.service.notice = notice
        wait_for(lambda: self.told)
        self.watcher.join(60)
        assert not self.watcher.is_alive()
        assert len([line for line in self.said if POLICY.match(line)]) == 1


@pytest.fixture
def watch(service: MetadataServer, monkeypatch: Patch, caplog: Any) -> Iterator[Watch]:
    monkeypatch.setattr(spot, "PERIOD", 0.02)
    monkeypatch.setattr(spot, "SLOW_PERIOD", 0.05)
    caplog.set_level(logging.INFO, "detalbert")
    watch = Watch(service, caplog)
    yield watch
    watch.watcher.stopped.set()


def test_an_advice_and_a_notice_are_told_once(watch: Watch) -> None:
    watch.start()
    wait_for(lambda: len(watch.service.asked) > 6)
    assert watch.told == watch.advised == []
    watch.service.rebalance = ADVICE
    wait_for(lambda: watch.advised)
    asked = len(watch.service.asked)
    wait_for(lambda: len(watch.service.asked) > asked + 4)
    assert (watch.told, watch.advised) == ([], [1]) and not POLICY.match("".join(watch.said))
    watch.end(NOTICE.replace(", ", ",\n  ") + "\n")
    assert watch.told == [f"spot/instance-action {NOTICE}"] and watch.advised == [1]
    way, advice, notice = watch.said
    assert way == "spot notices: read with a token (IMDSv2)" and ADVICE in advice
    assert notice == f"EC2 announces: spot/instance-action {NOTICE}"


@pytest.mark.parametrize("tokens", ["unanswered", "cut", 403, 404, 405])
def test_where_no_token_is_had_none_is_sent(
    tokens: str | int, watch: Watch, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(spot, "TIMEOUT", 0.5)
    watch.service.tokens, watch.service.required = tokens, False
    watch.start()
    watch.end()
    assert watch.said[0].startswith("spot notices: read without a token (IMDSv1)")


def test_tokens_wanted_and_none_given_is_said_with_the_remedy(watch: Watch) -> None:
    watch.service.tokens = 403
    watch.start()
    wait_for(lambda: len(watch.service.asked) > spot.TRIES + 3)
    (line,) = watch.said
    assert "wants a token, and none arrives" in line and "hop limit to 2" in line
    watch.service.tokens = "given"
    watch.end()


def test_another_token_is_taken_and_another_way(service: MetadataServer) -> None:
    watcher = spot.SpotWatcher(Mock(), Mock())
    service.notice = NOTICE
    ways = ("given", "one"), ("given", "another"), (404, "a third"), ("given", "a third")
    for service.tokens, service.token in ways:  # the first one ran out
        service.required = service.tokens == "given"
        assert watcher._read(spot.NOTICE) == f"spot/instance-action {NOTICE}"
    service.required, service.fault = False, 401  # whatever is sent
    with pytest.raises(OSError, match="401"):
        watcher._read(spot.NOTICE)


@pytest.mark.usefixtures("master")
def test_a_service_that_comes_late_is_read(watch: Watch, caplog: Any) -> None:
    """Until then the machine is none of EC2's: one line, no warning, on a cluster too."""
    watch.service.leave()
    watch.start()
    wait_for(lambda: watch.said)
    time.sleep(0.2)
    (line,) = watch.said
    assert watch.service.url in line and [r.levelname for r in caplog.records] == ["INFO"]
    assert "(Connection refused), so probably not on EC2. There: Set" in line
    watch.service.listen()
    watch.end()


def test_an_absent_service_is_asked_less_often(watch: Watch, monkeypatch: Patch) -> None:
    monkeypatch.setattr(spot, "SLOW_PERIOD", 3600)
    watch.service.fault = 500
    watch.start()
    wait_for(lambda: watch.said)
    time.sleep(0.2)
    assert len(watch.service.asked) == spot.TRIES and watch.watcher.is_alive()


@pytest.mark.parametrize("fault", [500, "cut", "unanswered", "slow", "refused"])
def test_no_error_of_the_service_ends_the_watch(
    fault: Any, watch: Watch, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(spot, "SLOW_PERIOD", 3600)  # it answered once, so it is asked often
    watch.start()
    wait_for(lambda: watch.said)
    monkeypatch.setattr(spot, "TIMEOUT", 0.3)
    asked = len(watch.service.asked)
    wait_for(lambda: len(watch.service.asked) > asked + 2)  # the old look is over
    if fault == "refused":
        watch.service.leave()
    elif fault == "slow":
        watch.service.delay = 1.0
    else:
        watch.service.fault = fault
    wait_for(lambda: len(watch.said) > 1)
    time.sleep(0.1)
    watch.service.fault, watch.service.delay = "", 0.0
    monkeypatch.setattr(spot, "TIMEOUT", 60)  # after the fault: a look would wait so long
    if fault == "refused":
        watch.service.listen()
    watch.end()
    way, *failures, notice = watch.said
    assert len(failures) < 3  # a server that leaves resets a connection, then refuses others
    assert all(line.startswith("spot notices: no answer now (") for line in failures)


@pytest.mark.parametrize("fault", [500, 503, "cut", "unanswered", "away"])
def test_a_notice_outlives_a_master_that_fails(
    fault: Any, service: MetadataServer, master: FakeMaster, watch: Watch, monkeypatch: Patch
) -> None:
    monkeypatch.setattr("detalbert.training.master.TIMEOUT", 1 if fault == "unanswered" else 60)
    service.notice, master.pending_faults = NOTICE, [fault, fault]
    if fault == "away":
        master.leave()
    context: Any = SimpleNamespace(distributed=None, _core=SimpleNamespace(preempt=Mock()))
    watch.start(MasterStops(context, searched=False).request)
    wait_for(lambda: len(watch.told) > 2)
    if fault == "away":
        assert master.pending == 0
        master.pending_faults = []
        master.listen()
    watch.end()
    assert master.pending == 1 and master.preempt.is_set()
    (failure,) = [line for line in watch.said if "not passed on" in line]
    assert "a fault" in failure or fault not in (500, 503)


def test_errors_in_here_end_nothing_and_each_kind_is_said_once(watch: Watch) -> None:
    watch.watcher.on_recommendation = Mock(side_effect=[RuntimeError("advised"), None])
    watch.service.rebalance = ADVICE
    errors = RuntimeError("1st"), KeyError("2nd"), RuntimeError("3rd"), None
    watch.start(Mock(side_effect=errors))
    wait_for(lambda: len(watch.said) > 2)
    assert "advised" in watch.said[1] and ADVICE in watch.said[2]
    watch.end()
    said = [line for line in watch.said if "not passed on" in line]
    assert len(said) == 2 and "1st" in said[0] and "2nd" in said[1]


def test_a_notice_makes_one_checkpoint_and_a_clean_end(
    service: MetadataServer, tiny_config: Path, tmp_path: Path, capsys: Any
) -> None:
    service.notice = NOTICE
    assert run(tiny_config, tmp_path / "off", *settings(max_steps=1)) == 0 == len(service.asked)
    periods = dict.fromkeys(["checkpoint_period", "validation_period", "reporting_period"], 5000)
    long = settings(max_steps=5000, spot_notice=True, **periods)
    assert run(tiny_config, tmp_path / "out", *long) == 143
    said = capsys.readouterr().err
    assert "asked to stop by spot/instance-action" in said and NOTICE in said
    (steps,) = steps_of(tmp_path / "out")
    assert 0 < steps < 5000
