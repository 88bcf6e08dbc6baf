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


def schedule(done: int, period: int, stops: Any = None, **keys: Any) -> Schedule:
    alone = core.DummyDistributedContext()
    hparams = HParams(**(dict.fromkeys(PERIODS, period) | keys))
    return Schedule(hparams, alone, done, stops or LocalStops(alone))


@given(period=st.integers(1, 60), first=st.integers(0, 500))
def test_every_period_but_not_at_once_after_a_start(period: int, first: int) -> None:
    every = schedule(first, period)
    found = {step: every.at(step) for step in range(first + 1, first + 300)}
    multiples = [step for step in found if step % period == 0]
    assert [step for step, due in found.items() if "validate" in due] == multiples
    steps = [step for step, due in found.items() if "report" in due]
    saves = [step for step, due in found.items() if "checkpoint" in due]
    assert set(saves) - set(steps) <= {first + min(SHORTEST, period)}  # for one that is left out
    assert set(steps) <= set(saves) and saves[0] - first >= (min(SHORTEST, period) if first else 1)
    assert all(later - at <= period for at, later in itertools.pairwise([first, *saves]))
    left_out = set(multiples) - set(steps)
    assert steps and set(steps) <= set(multiples) and len(left_out) <= (first > 0)
    assert all(step - first < min(SHORTEST, period) for step in left_out)
    assert not first or steps[0] - first >= min(SHORTEST, period)
    if first % period == 0:
        assert left_out == set()  # no disturbance: all reports of an uncut run


@pytest.mark.parametrize("chief", [True, False])
def test_a_request_comes_through_at_once_and_the_chief_says_once_who_asked(
    chief: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "detalbert")
    stops = LocalStops(core.DummyDistributedContext())
    asked = stops.should_preempt = Mock(side_effect=[False, False, True, True])
    stops.request("SIGTERM")
    due = schedule(88, 10, stops)
    due._logged = not chief
    found = ["stop" in due.at(step) for step in (89, 90, 91)]
    assert found == [False, False, True] and due.stops()
    assert [call.args for call in asked.call_args_list] == [(False,)] * 3 + [(True,)]
    assert caplog.messages == ["asked to stop by SIGTERM; a checkpoint follows"] * chief
    stops.should_preempt = lambda acknowledge: True
    assert due.at(92) == {"report", "stop"}


def test_an_advice_makes_one_checkpoint_at_the_next_report() -> None:
    due = schedule(0, 1000, reporting_period=10, spot_notice=True)
    due.request_checkpoint()
    assert [step for step in range(1, 40) if "checkpoint" in due.at(step)] == [10]
