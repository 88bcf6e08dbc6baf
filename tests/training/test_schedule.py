"""What is due after each step, and what a run says of being asked to stop."""

from unittest.mock import Mock

import pytest
from determined import core
from hypothesis import given
from hypothesis import strategies as st

from detalbert.settings.hparams import HParams
from detalbert.training import schedule as schedules
from detalbert.training.schedule import LocalStops, MasterStops, Schedule

PERIODS = ("reporting_period", "validation_period", "checkpoint_period")


def make_schedule(stops=None, **periods):
    alone = core.DummyDistributedContext()
    hparams = HParams(**{**dict.fromkeys(PERIODS, 10), **periods})
    return Schedule(hparams, alone, stops or LocalStops(alone))


@given(periods=st.fixed_dictionaries(dict.fromkeys(PERIODS, st.integers(1, 60))))
def test_each_is_due_at_the_multiples_of_its_period(periods):
    schedule = make_schedule(**periods)
    due = {step: schedule.at(step) for step in range(1, 130)}
    for name, key in zip(("report", "validate", "checkpoint"), PERIODS, strict=True):
        period = periods[key]
        assert [step for step in due if name in due[step]] == list(range(period, 130, period))


@pytest.mark.parametrize("chief", [True, False])
def test_a_request_comes_through_at_once_and_the_chief_says_once_who_asked(chief, caplog):
    caplog.set_level("INFO", "detalbert")
    stops = LocalStops(core.DummyDistributedContext())
    should_preempt = Mock(side_effect=[False, False, True, True])
    stops.should_preempt = should_preempt
    stops.request("SIGTERM")
    schedule = make_schedule(stops)
    schedule.distributed = Mock(rank=int(not chief))

    assert "stop" not in schedule.at(89)
    assert "stop" not in schedule.at(90)
    assert "stop" in schedule.at(91)
    assert schedule.stops()

    acknowledged = [call.args for call in should_preempt.call_args_list]
    assert acknowledged == [(False,), (False,), (False,), (True,)]
    line = "asked to stop by SIGTERM; a checkpoint follows"
    assert caplog.messages == ([line] if chief else [])
    stops.should_preempt = lambda acknowledge: True
    assert schedule.at(92) == {"report", "stop"}


def test_a_master_that_does_not_say_the_state_is_one_warning(monkeypatch, caplog):
    monkeypatch.setattr(schedules.master, "trial", Mock(side_effect=OSError("no route")))
    stops = object.__new__(MasterStops)
    stops.__dict__ |= {"distributed": core.DummyDistributedContext(), "searched": True}
    stops._failed = False
    assert not stops.dropped(5)
    (message,) = caplog.messages
    assert "no route" in message
    assert not stops.dropped(6)
    assert caplog.messages == [message]


def test_an_advice_makes_one_checkpoint_at_the_next_report():
    schedule = make_schedule(validation_period=1000, checkpoint_period=1000, spot_notice=True)
    schedule.request_checkpoint()
    saves = [step for step in range(1, 40) if "checkpoint" in schedule.at(step)]
    assert saves == [10]


def test_a_search_is_asked_soon_after_a_validation_and_ends_the_run():
    asked = []

    class Search(MasterStops):
        def __init__(self):
            self.should_preempt = lambda acknowledge: False

        def dropped(self, step):
            asked.append(step)
            return step == 44

    schedule = make_schedule(Search(), reporting_period=30, validation_period=20)
    due = [step for step in range(1, 50) if "stop" in schedule.at(step)]
    assert asked == [1, 2, 4, 8, 16, 21, 22, 24, 28, 30, 36, 41, 42, 44]
    assert due == [44, 45, 46, 47, 48, 49]
    assert schedule.stops()
