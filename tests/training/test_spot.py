"""The watcher of spot notices, between a real HTTP server that speaks the metadata service's
protocol and a master, both of which fail; a run that is told."""

import logging
import re
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import determined
import pytest

from detalbert.training import metadata, spot
from tests.conftest import settings
from tests.fakes.master import TOKEN, FakeMaster
from tests.fakes.metadata import MetadataServer
from tests.fakes.runs import run, steps_of, wait_for
from tests.training.conftest import ADVICE, NOTICE

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

    def end(self, service: MetadataServer, notice: str = NOTICE) -> None:
        """Announce; wait until the notice is told and the thread has ended."""
        service.notice = notice
        wait_for(lambda: self.told)
        self.watcher.join(60)
        assert not self.watcher.is_alive()
        assert len([line for line in self.said if POLICY.match(line)]) == 1


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Iterator[Watch]:
    monkeypatch.setattr(spot, "PERIOD", 0.02)
    monkeypatch.setattr(spot, "SLOW_PERIOD", 0.05)
    caplog.set_level(logging.INFO, "detalbert")
    watch = Watch(caplog)
    yield watch
    watch.watcher.stopped.set()


def test_an_advice_and_a_notice_are_told_once(service: MetadataServer, watch: Watch) -> None:
    watch.start()
    wait_for(lambda: len(service.asked) > 6)
    assert watch.told == watch.advised == []
    service.rebalance = ADVICE
    wait_for(lambda: watch.advised)
    asked = len(service.asked)
    wait_for(lambda: len(service.asked) > asked + 4)
    assert (watch.told, watch.advised) == ([], [1]) and not POLICY.match("".join(watch.said))
    watch.end(service, NOTICE.replace(", ", ",\n  ") + "\n")
    assert watch.told == [f"spot/instance-action {NOTICE}"] and watch.advised == [1]
    way, advice, notice = watch.said
    assert way == "spot notices: read with a token (IMDSv2)" and ADVICE in advice
    assert notice == f"EC2 announces: spot/instance-action {NOTICE}"


@pytest.mark.parametrize("tokens", ["unanswered", "cut", 403, 404, 405])
def test_where_no_token_is_had_none_is_sent(
    tokens: str | int, service: MetadataServer, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "TIMEOUT", 0.5)
    service.tokens, service.required = tokens, False
    watch.start()
    watch.end(service)
    assert watch.said[0].startswith("spot notices: read without a token (IMDSv1)")


def test_tokens_wanted_and_none_given_is_said_with_the_remedy(
    service: MetadataServer, watch: Watch
) -> None:
    service.tokens = 403
    watch.start()
    wait_for(lambda: len(service.asked) > spot.TRIES + 3)
    (line,) = watch.said
    assert "wants a token, and none arrives" in line and "hop limit to 2" in line
    service.tokens = "given"
    watch.end(service)


def test_another_token_is_taken_and_another_way(service: MetadataServer) -> None:
    reader = metadata.Metadata()
    service.notice = NOTICE
    for tokens, required, token, way in (
        ("given", True, "one", metadata.WITH_TOKEN),
        ("given", True, "another", metadata.WITH_TOKEN),  # the first one ran out
        (404, False, "a third", metadata.WITHOUT_TOKEN),
        ("given", True, "a third", metadata.WITH_TOKEN),
    ):
        service.tokens, service.required, service.token = tokens, required, token
        assert (reader.read("spot/instance-action"), reader.way) == (NOTICE, way)
    service.required, service.fault = False, 401  # whatever is sent
    with pytest.raises(OSError, match="401"):
        reader.read("spot/instance-action")


@pytest.mark.usefixtures("master")
def test_a_service_that_comes_late_is_read(
    service: MetadataServer, watch: Watch, caplog: pytest.LogCaptureFixture
) -> None:
    """Until then the machine is none of EC2's: one line, no warning, on a cluster too."""
    service.leave()
    watch.start()
    wait_for(lambda: watch.said)
    time.sleep(0.2)
    (line,) = watch.said
    assert service.url in line and [r.levelname for r in caplog.records] == ["INFO"]
    assert "(Connection refused), so probably not on EC2. There: Set" in line
    service.listen()
    watch.end(service)


def test_an_absent_service_is_asked_less_often(
    service: MetadataServer, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spot, "SLOW_PERIOD", 3600)
    service.fault = 500
    watch.start()
    wait_for(lambda: watch.said)
    time.sleep(0.2)
    assert len(service.asked) == spot.TRIES and watch.watcher.is_alive()


@pytest.mark.parametrize("fault", [500, "cut", "unanswered", "slow", "refused"])
def test_no_error_of_the_service_ends_the_watch(
    fault: Any, service: MetadataServer, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spot, "SLOW_PERIOD", 3600)  # it answered once, so it is asked often
    watch.start()
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
    time.sleep(0.1)
    service.fault, service.delay = "", 0.0
    monkeypatch.setattr(metadata, "TIMEOUT", 60)  # after the fault: a look would wait so long
    if fault == "refused":
        service.listen()
    watch.end(service)
    way, *failures, notice = watch.said
    assert len(failures) < 3  # a server that leaves resets a connection, then refuses others
    assert all(line.startswith("spot notices: no answer now (") for line in failures)


@pytest.mark.parametrize("fault", [500, 503, "cut", "unanswered", "away"])
def test_a_notice_outlives_a_master_that_fails(
    fault: Any,
    service: MetadataServer,
    master: FakeMaster,
    watch: Watch,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("detalbert.training.master.TIMEOUT", 1 if fault == "unanswered" else 60)
    service.notice, master.pending_faults = NOTICE, [fault, fault]
    if fault == "away":
        master.leave()
    watch.start(spot.ThroughTheMaster().request)
    wait_for(lambda: len(watch.told) > 2)
    if fault == "away":
        assert master.pending == 0
        master.pending_faults = []
        master.listen()
    watch.end(service)
    assert master.pending == 1 and master.preempt.is_set()
    (failure,) = [line for line in watch.said if "not passed on" in line]
    assert "a fault" in failure or fault not in (500, 503)


def test_errors_in_here_end_nothing_and_each_kind_is_said_once(
    service: MetadataServer, watch: Watch
) -> None:
    def failing(*errors: Exception) -> Callable[..., None]:
        left = list(errors)
        return lambda *_: left and _raise(left.pop(0))

    watch.watcher.on_recommendation = failing(RuntimeError("advised"))
    service.rebalance = ADVICE
    watch.start(failing(RuntimeError("1st"), KeyError("2nd"), RuntimeError("3rd")))
    wait_for(lambda: len(watch.said) > 2)
    assert "advised" in watch.said[1] and ADVICE in watch.said[2]
    watch.end(service)
    said = [line for line in watch.said if "not passed on" in line]
    assert len(said) == 2 and "1st" in said[0] and "2nd" in said[1]


def _raise(error: Exception) -> None:
    raise error


def test_off_means_nobody_asks(service: MetadataServer) -> None:
    with spot.watching(False, lambda notice: None, lambda: None):
        time.sleep(0.05)
    assert service.asked == []


def test_a_notice_makes_one_checkpoint_and_a_clean_end(
    service: MetadataServer, tiny_config: Path, tmp_path: Path, capsys: Any
) -> None:
    service.notice = NOTICE
    periods = dict.fromkeys(["checkpoint_period", "validation_period", "reporting_period"], 5000)
    long = settings(max_steps=5000, spot_notice=True, **periods)
    assert run(tiny_config, tmp_path / "out", *long) == 0
    said = capsys.readouterr().err
    assert "asked to stop by spot/instance-action" in said and NOTICE in said
    (steps,) = steps_of(tmp_path / "out")
    assert 0 < steps < 5000
