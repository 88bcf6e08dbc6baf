"""When a run comes up for air, and what it says of being asked to stop."""

from unittest.mock import Mock

import pytest
from determined import core
from hypothesis import given
from hypothesis import strategies as st

from detalbert.training.stopping import SHORTEST, Every, EveryOrStop, Told


@given(period=st.integers(1, 60), first=st.integers(0, 500))
def test_every_period_but_not_at_once_after_a_start(period: int, first: int) -> None:
    steps = [step for step in range(first + 1, first + 300) if step in Every(period, first)]
    multiples = [step for step in range(first + 1, first + 300) if step % period == 0]
    left_out = set(multiples) - set(steps)
    assert steps and set(steps) <= set(multiples) and len(left_out) <= (first > 0)
    assert all(step - first < min(SHORTEST, period) for step in left_out)
    assert not first or steps[0] - first >= min(SHORTEST, period)
    if first % period == 0:
        assert left_out == set()  # no disturbance: all reports of an uncut run


def test_a_request_comes_through_at_once() -> None:
    reports = EveryOrStop(Every(10, first=88), Mock(side_effect=[False, False, True, True]))
    assert [step in reports for step in (89, 90, 91, 100)] == [False, False, True, True]


@pytest.mark.parametrize("chief", [True, False])
def test_the_chief_says_once_who_asked(chief: bool, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "detalbert")
    preempt = core.DummyPreemptContext(core.DummyDistributedContext())
    asked = preempt.should_preempt = Mock(side_effect=[False, True, True])
    told = Told(preempt, lambda: "SIGTERM", chief)
    assert [told(auto_ack=False), preempt.should_preempt(), told()] == [False, True, True]
    assert [call.args for call in asked.call_args_list] == [(False,), (True,), (True,)]
    assert caplog.messages == ["asked to stop by SIGTERM; a checkpoint follows"] * chief
