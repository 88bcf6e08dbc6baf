"""The spot simulation: against another one written from planning.md, and its periods."""

import dataclasses
import math
import random
import statistics
from typing import NamedTuple

import numpy as np
import pytest

from cluster.facts.spot import CASES, MOST_LIVES, Market, SpotJob, best_period, simulate

# The published 64-slot job.
JOB = SpotJob(work_seconds=2850, period_seconds=300)
LONG = dataclasses.replace(JOB, work_seconds=30_000.0, period_seconds=700.0)
OFTEN = Market(hourly=0.3, wait_seconds=600)


class Run(NamedTuple):
    """A run of a job on the spot market."""

    hours: float
    paid: float  # hours of a machine
    reclaims: int


def checkpoint_ends(job: SpotJob) -> list[float]:
    """Return the ends of the checkpoints in seconds, on the clock of an undisturbed job."""
    ends = [0.0]
    trained = 0.0
    while trained < job.work_seconds - 1e-9:
        seconds = min(job.period_seconds, job.work_seconds - trained)
        trained += seconds
        ends.append(ends[-1] + seconds + job.checkpoint_seconds)
    return ends


def one_run(dice: random.Random, job: SpotJob, market: Market) -> Run:
    """Simulate a run event by event, from "How a plan is made" alone."""
    rate = market.hourly / 3600
    wait = market.wait_seconds
    checkpoints = checkpoint_ends(job)
    done = 0.0  # on the clock of an undisturbed job
    paid = 0.0
    reclaims = 0
    waits_at_first = dice.random() < rate * wait / (1 + rate * wait)
    launched = dice.expovariate(1 / wait) if waits_at_first else 0.0
    while True:
        # A life ends with the job, or with a reclaim, which is free in the first hour.
        started = launched + 180 + 120
        finish = started + job.restart_seconds + checkpoints[-1] - done
        stop = started + dice.expovariate(rate)
        seconds = min(stop, finish) - launched
        if stop >= finish or seconds >= 3600:
            paid += seconds / 3600
        if stop >= finish:
            return Run(finish / 3600, paid, reclaims)

        # The work goes back to the last checkpoint, or to one at the notice.
        reclaims += 1
        reached = done + max(0.0, stop - started - job.restart_seconds)
        done = max([done, *(end for end in checkpoints if end <= reached)])
        if dice.random() < job.notice_read and job.checkpoint_seconds <= 120:
            done = max(done, reached - 120)
        launched = stop + 25 + dice.expovariate(1 / wait)


PAIRS = {name: (JOB, market) for name, market in CASES.items()}
PAIRS["some noticed"] = (dataclasses.replace(LONG, notice_read=0.5), OFTEN)
PAIRS["notices that are too short"] = (
    dataclasses.replace(LONG, notice_read=1.0, checkpoint_seconds=130.0),
    OFTEN,
)


@pytest.mark.parametrize("name", PAIRS)
def test_means_are_those_of_a_simulation_written_from_the_page(name):
    job, market = PAIRS[name]
    dice = random.Random(7)
    expected = np.array([one_run(dice, job, market) for _ in range(3000)])  # [runs, 3]
    figures = simulate(job, market, runs=20_000, seed=1)
    assert (figures["lost h"] + figures["waiting h"] <= figures["hours"]).all()

    # Means within three standard errors of their difference.
    runs = np.stack([figures["hours"], figures["paid h"], figures["reclaims"]], axis=1)
    error = np.sqrt(expected.var(0) / len(expected) + runs.var(0) / len(runs))
    distance = np.abs(expected.mean(0) - runs.mean(0)) / error
    assert (distance < 3).all(), distance
    assert figures["reclaims"].mean() > 0.04  # else they would agree on nothing

    # A quantile of the one is at the same share of the other.
    for column in range(3):
        for share in (0.05, 0.5, 0.95):
            value = np.quantile(runs[:, column], share)
            below = (expected[:, column] < value - 1e-6).mean()
            up_to = (expected[:, column] <= value + 1e-6).mean()
            assert below - 0.02 < share < up_to + 0.02, (column, share, value)


def test_a_run_of_many_lives_goes_on_at_the_pace_of_the_first():
    """About 250 lives, of which 100 are followed."""
    job = SpotJob(work_seconds=600_000.0, period_seconds=600.0, notice_read=1.0)
    dice = random.Random(3)
    expected = [one_run(dice, job, CASES["high"]) for _ in range(100)]

    figures = simulate(job, CASES["high"])

    hours = statistics.mean(run.hours for run in expected)
    paid = statistics.mean(run.paid for run in expected)
    reclaims = statistics.mean(run.reclaims for run in expected)
    assert figures["hours"].mean() == pytest.approx(hours, rel=0.03)
    assert figures["paid h"].mean() == pytest.approx(paid, rel=0.03)
    assert figures["reclaims"].mean() == pytest.approx(reclaims, rel=0.03)


def test_a_run_that_needs_too_many_lives_never_ends():
    """2,000 lives of 0.72 hours each are 1,440 hours; one that never reaches a checkpoint has no
    end at all.
    """
    high = CASES["high"]
    seconds = MOST_LIVES / high.hourly * 3600
    fits = SpotJob(0.7 * seconds, period_seconds=600.0, notice_read=1.0)
    too_long = SpotJob(1.1 * seconds, period_seconds=600.0, notice_read=1.0)
    without_checkpoint = SpotJob(1e6, period_seconds=1e6)

    assert np.isfinite(simulate(fits, high)["hours"]).all()
    assert np.isinf(simulate(too_long, high)["hours"]).all()
    assert np.isinf(simulate(without_checkpoint, high)["paid h"]).all()


def test_the_advised_period_is_young_s():
    """sqrt(2 C / r), at most half the run."""
    market = Market(hourly=0.36)
    job = dataclasses.replace(JOB, work_seconds=20_000.0, checkpoint_seconds=9.0)
    short = dataclasses.replace(job, work_seconds=80.0)

    assert best_period(job, market) == pytest.approx(math.sqrt(2 * 9 * 3600 / 0.36))
    assert best_period(short, market) == 40.0
