"""What is due after each step, and what a run says of being asked to stop."""

import itertools
from typing import Any
from unittest.mock import Mock

import pytest
from determined import core
from hypothesis import given
from hypothesis import strategies as st

from detalbert.settings.hparams import HParams
from detalbert.training.schedule import SHORTEST, LocalStops, Schedule

PERIODS = ("reporting_period", "validation_period", "checkpoint_period")


def make_schedule(done: int, period: int, stops: LocalStops | None = None, **keys: Any) -> Schedule:
    """A schedule of a start at step `done`, with one period for everything but `keys`."""
    alone = core.DummyDistributedContext()
    hparams = HParams(**{**dict.fromkeys(PERIODS, period), **keys})
    return Schedule(hparams, alone, done, stops or LocalStops(alone))


@given(period=st.integers(1, 60), first=st.integers(0, 500))
def test_every_period_but_not_at_once_after_a_start(period: int, first: int) -> None:
    schedule = make_schedule(first, period)
    due = {step: schedule.at(step) for step in range(first + 1, first + 300)}
    multiples = [step for step in due if step % period == 0]
    validations = [step for step in due if "validate" in due[step]]
    reports = [step for step in due if "report" in due[step]]
    saves = [step for step in due if "checkpoint" in due[step]]
    shortest = min(SHORTEST, period)

    assert validations == multiples
    # At most one multiple is left out, soon after a resumed start.
    assert reports
    assert set(reports) <= set(multiples)
    left_out = set(multiples) - set(reports)
    assert len(left_out) <= (1 if first else 0)
    assert all(step - first < shortest for step in left_out)
    if first:
        assert reports[0] - first >= shortest
    if first % period == 0:
        assert left_out == set()  # no disturbance: all reports of an uncut run

    # A checkpoint comes with every report, and once for one that is left out.
    assert set(reports) <= set(saves)
    assert set(saves) - set(reports) <= {first + shortest}
    assert saves[0] - first >= (shortest if first else 1)
    for step, following in itertools.pairwise([first, *saves]):
        assert following - step <= period


@pytest.mark.parametrize("chief", [True, False])
def test_a_request_comes_through_at_once_and_the_chief_says_once_who_asked(
    chief: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "detalbert")
    stops = LocalStops(core.DummyDistributedContext())
    should_preempt = Mock(side_effect=[False, False, True, True])
    stops.should_preempt = should_preempt
    stops.request("SIGTERM")
    schedule = make_schedule(88, 10, stops)
    schedule._logged = not chief

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


def test_an_advice_makes_one_checkpoint_at_the_next_report() -> None:
    schedule = make_schedule(0, 1000, reporting_period=10, spot_notice=True)
    schedule.request_checkpoint()
    saves = [step for step in range(1, 40) if "checkpoint" in schedule.at(step)]
    assert saves == [10]
