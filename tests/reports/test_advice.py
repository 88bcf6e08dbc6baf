"""What a plan advises: a period that the high rate bears, a range that is not a point."""

import dataclasses
import json
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports.__main__ import main
from reports.market import CASES, Constant
from reports.settings import Settings
from reports.simulate import Job, best_period, running_seconds, simulate
from tests.conftest import max_examples

MIDDLE, HIGH = CASES["middle"], CASES["high"]
SLOW = Settings(checkpoint_seconds=180, boot_seconds=600)
JOBS = {
    "64 V100": (Job(2850, 2850, 8, 7.344), 2.76),
    "1 V100 for 37 h": (Job(132_198, 132_198, 1, 0.918), 24.0),
    "8 H100": (Job(2110, 2110, 1, 21.15), 0.384),
    "slow checkpoints": (Job(20_000, 20_000, 4, 8, SLOW), 1.5),
    "slow restarts": (Job(9000, 9000, 2, 8, Settings(restart_seconds=600)), 3.0),
}


@pytest.mark.parametrize("name", JOBS)
def test_at_the_high_rate_the_advised_period_costs_at_most_a_tenth_more_than_the_best(name):
    job, step = JOBS[name]
    steps = best_period(job, MIDDLE, HIGH, step)
    whole = int(job.work_seconds / step)
    costs = {}
    for count in {steps, *np.geomspace(1, whole, 60).astype(int)}:
        one = dataclasses.replace(job, period_seconds=float(count * step))
        if running_seconds(one, HIGH, np.array([count * step]))[0][0] < 20 * job.work_seconds:
            costs[count] = simulate(one, HIGH, 2000, seed=0)["cost"].mean()
    assert len(costs) > 20 and costs[steps] <= 1.10 * min(costs.values())


TIMES = st.floats(1, 1e6), st.floats(1e-3, 3600), st.floats(0.1, 600)


@max_examples(50)
@given(*TIMES, st.integers(1, 64), st.floats(0, 3), st.floats(0, 3))
def test_no_advice_puts_more_than_30_minutes_or_half_the_run_at_stake(
    work, step, checkpoint, machines, rate, more
):
    job = Job(work, work, machines, 1, Settings(checkpoint_seconds=checkpoint))
    steps = best_period(job, Constant(rate), Constant(rate + more), step)
    assert steps == 1 or steps * step <= min(1800, work / 2) * (1 + 1e-9)


def planned(capsys, *arguments: str) -> dict:
    assert main(["plan", "--today", "2026-10-01", "--json", *arguments]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("pool", [[], ["--pool", "p3.16xlarge"]])
def test_the_default_plan_of_the_64_slot_job_has_a_range_that_is_not_a_point(capsys, pool):
    report = planned(capsys, "--slots", "64", "--runs", "1000", *pool)
    spot = [row for row in report["tables"][0]["rows"] if row["market"] == "spot"]
    assert spot
    for row in spot:
        assert row["hours low"] < row["hours"] < row["hours high"]
        assert row["cost low"] < row["cost high"] and row["cost"] < row["on demand"]
        assert row["waiting h"] > 0 and row["reclaims"] > 0.01
    assert report["total"] == min(row["cost"] for row in report["tables"][0]["rows"])
    cases = report["tables"][1]["rows"]
    assert [row["case"] for row in cases] == ["low", "middle", "high"]
    assert [row["reclaims/h"] for row in cases] == [0.06, 0.236, 1.39]
    assert [row["wait min"] for row in cases] == [2, 60, 236]
    steps = int(re.search(r"checkpoint_period: (\d+)", report["yaml"])[1])
    minutes = next(row["minutes"] for row in spot if row["steps"] == steps)
    assert steps > 1 and minutes <= 30
    if pool:  # the published job
        assert 20 < steps <= 1033 / 2
        said = "p3.16xlarge: RETIRED, AWS launches none since 2026-05-25"
        assert any(said in note for note in report["notes"])
