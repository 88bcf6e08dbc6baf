"""The spot simulation: against the closed form, its invariants, and traces."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detalbert.errors import UserError
from reports.closed_form import break_even_hazard, daly_period, expected, young_period
from reports.plan import best_period, within
from reports.reclaims import Constant, Trace, load_trace
from reports.simulate import Job, simulate

# The published 64-slot job on eight spot p3.16xlarge.
JOB = Job(
    work_seconds=2850, period_seconds=300, checkpoint_seconds=25, machines=8, price=7.344,
    on_demand_price=24.48,
)  # fmt: skip
SETTINGS = {
    "rare": ({}, 0.001),
    "frequent": ({}, 0.5),
    "long": ({"work_seconds": 36_000, "period_seconds": 900}, 0.1),
    "one machine": ({"machines": 1, "work_seconds": 132_198, "period_seconds": 1800}, 0.2),
    "one checkpoint": ({"period_seconds": 2850}, 0.1),
    "slow restart": ({"restart_seconds": 600, "boot_seconds": 600}, 0.3),
    "noticed": ({"notice_read": 1.0}, 0.5),
    "noticed, slow restart": ({"notice_read": 1.0, "restart_seconds": 300}, 1.0),
    "others dropped": ({"idle_seconds": 100.0}, 0.5),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_means_have_the_closed_form_in_their_99_percent_interval(name):
    changes, hazard = SETTINGS[name]
    job = dataclasses.replace(JOB, **changes)
    found, closed = simulate(job, Constant(hazard), 20_000, seed=1), expected(job, hazard)
    assert within(found.hours, closed.hours)
    assert within(found.cost, closed.cost)
    assert within(found.reclaims, closed.reclaims)
    assert found.reclaims.sum() > 0  # else it would agree on nothing


def test_waits_for_capacity_have_the_closed_time_too():
    job = dataclasses.replace(JOB, wait_seconds=200.0)
    found = simulate(job, Constant(0.3), 20_000, seed=2)
    assert within(found.hours, expected(job, 0.3).hours)


def test_the_same_seed_gives_the_same_runs_and_another_seed_others():
    first, again, other = (simulate(JOB, Constant(0.5), 500, seed) for seed in (3, 3, 4))
    np.testing.assert_array_equal(first.hours, again.hours)
    np.testing.assert_array_equal(first.cost, again.cost)
    assert (first.hours != other.hours).any()


def test_without_reclaims_it_is_arithmetic():
    found = simulate(JOB, Constant(0.0), 10, seed=0)
    seconds = 180 + 120 + 60 + 2850 + 10 * 25
    np.testing.assert_allclose(found.hours, seconds / 3600)
    np.testing.assert_allclose(found.cost, 8 * 7.344 * seconds / 3600)


jobs = st.builds(
    Job,
    work_seconds=st.floats(10, 20_000),
    period_seconds=st.floats(30, 5000),
    checkpoint_seconds=st.floats(0.1, 200),
    machines=st.integers(1, 16),
    price=st.floats(0.1, 50),
    on_demand_price=st.floats(0.1, 100),
    wait_seconds=st.sampled_from([0.0, 300.0]),
    fallback_seconds=st.sampled_from([600.0, math.inf]),
    notice_read=st.sampled_from([0.0, 0.5, 1.0]),
)


@settings(max_examples=60, deadline=None)
@given(jobs, st.floats(0, 0.5), st.integers(0, 9))
def test_no_run_is_shorter_or_cheaper_than_its_work(job, hazard, seed):
    found = simulate(job, Constant(hazard), 50, seed)
    least = (job.work_seconds + job.checkpoint_seconds) / 3600
    assert (found.hours >= least * (1 - 1e-9)).all()
    cheapest = min(job.price, job.on_demand_price) * job.machines
    assert (found.cost >= least * cheapest * (1 - 1e-9)).all()
    assert (found.lost_hours <= found.hours).all()


@settings(max_examples=40, deadline=None)
@given(jobs, st.floats(0, 0.5), st.floats(1.01, 3))
def test_a_higher_price_costs_more_and_takes_no_longer(job, hazard, factor):
    dearer = dataclasses.replace(job, price=job.price * factor)
    cheap, dear = (simulate(j, Constant(hazard), 50, 0) for j in (job, dearer))
    assert (dear.cost >= cheap.cost).all() and dear.cost.sum() > cheap.cost.sum() * (1 - 1e-12)
    np.testing.assert_array_equal(cheap.hours, dear.hours)


def test_a_notice_that_is_read_loses_nothing():
    noticed = simulate(dataclasses.replace(JOB, notice_read=1.0), Constant(0.5), 500, 0)
    assert noticed.reclaims.sum() > 0 and noticed.lost_hours.sum() == 0
    late = dataclasses.replace(JOB, notice_read=1.0, checkpoint_seconds=130.0)
    assert simulate(late, Constant(0.5), 500, 0).lost_hours.sum() > 0  # it does not fit in


def test_a_long_wait_ends_on_demand():
    job = dataclasses.replace(JOB, wait_seconds=1e9, fallback_seconds=600.0)
    found = simulate(job, Constant(0.5), 100, 0)
    assert found.fell_back.all() and found.reclaims.sum() == 0
    seconds = 180 + 120 + 60 + 2850 + 250
    np.testing.assert_allclose(found.hours, (600 + seconds) / 3600)
    np.testing.assert_allclose(found.cost, 8 * 24.48 * seconds / 3600)


def test_a_job_that_cannot_finish_says_so():
    job = dataclasses.replace(JOB, period_seconds=2850.0, machines=64)
    assert np.isinf(simulate(job, Constant(10.0), 5, 0).cost).all()


def test_the_checkpoint_period_that_is_chosen_is_the_cheapest():
    hazard = 0.05
    job = dataclasses.replace(JOB, work_seconds=20_000, period_seconds=20_000)
    best = best_period(job, Constant(hazard), step=3.0, seed=0)
    young = young_period(25, hazard, 8)
    assert young == pytest.approx(math.sqrt(2 * 25 * 3600 / (hazard * 8)))
    assert 0.5 * young < best < 2 * young
    assert abs(daly_period(25, hazard, 8) - young) < 0.2 * young
    cost = expected(dataclasses.replace(job, period_seconds=best), hazard).cost
    for other in (young / 3, young * 3):
        assert expected(dataclasses.replace(job, period_seconds=other), hazard).cost > cost


def test_at_the_break_even_rate_spot_costs_what_on_demand_does():
    on_demand = dataclasses.replace(JOB, price=24.48)
    target = expected(on_demand, 0.0).cost
    rate = break_even_hazard(JOB, target)
    period = daly_period(JOB.checkpoint_seconds, rate, JOB.machines)
    there = dataclasses.replace(JOB, period_seconds=period)
    assert expected(there, rate).cost == pytest.approx(target, rel=1e-6)
    assert break_even_hazard(JOB, 1.0) == 0.0  # on demand is all but free


def test_a_trace_of_a_constant_rate_is_a_constant_rate():
    rng = np.random.Generator(np.random.PCG64(0))
    moments = np.sort(rng.uniform(0, 3600 * 20_000, 20_000))  # 0.125 per machine-hour
    trace = Trace(moments, 3600.0 * 20_000, 8)
    assert trace.hazard == pytest.approx(0.125)
    half = dataclasses.replace(JOB, machines=4)
    for job in (JOB, half):
        found, like = (simulate(job, r, 4000, 1) for r in (trace, Constant(0.125)))
        assert found.reclaims.mean() == pytest.approx(like.reclaims.mean(), rel=0.1)
        assert found.hours.mean() == pytest.approx(like.hours.mean(), rel=0.02)


def test_a_trace_file_is_read_and_its_faults_named(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("hours,event\n8,machines\n100,end\n7.5,reclaim\n2,reclaim\n")
    trace = load_trace(path)
    assert list(trace.seconds) == [7200, 27000] and trace.machines == 8
    with pytest.raises(UserError, match="watched 8 machines, the job needs 16"):
        trace.next(np.random.default_rng(0), np.zeros(2), 16)
    for text, said in [
        ("hours,event\n8,machines\n100,end\nx,reclaim\n", "line 4"),
        ("hours,event\n8,machines\n100,end\n5,taken\n", "line 4"),
        ("hours,event\n8,machines\n5,reclaim\n", "one row with machines and one with end"),
        ("hours,event\n8,machines\n5,reclaim\n3,end\n", "end after the last reclaim"),
    ]:
        path.write_text(text)
        with pytest.raises(UserError, match=said):
            load_trace(path)
