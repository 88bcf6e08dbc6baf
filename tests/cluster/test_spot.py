"""The spot simulation: against another one written from planning.md, and its periods."""

import dataclasses
import math
import random
import statistics

import numpy as np
import pytest

from cluster.facts.spot import CASES, MOST_LIVES, Market, SpotJob, best_period, simulate

# The published 64-slot job.
JOB = SpotJob(work_seconds=2850, period_seconds=300)
LONG = dataclasses.replace(JOB, work_seconds=30_000.0, period_seconds=700.0)
OFTEN = Market(0.3, 600)


def one_run(dice: random.Random, job: SpotJob, market: Market) -> tuple[float, float, int]:
    """Hours, hours paid of a machine, reclaims: event by event, from "How a plan is made" alone."""
    rate, mean = market.hourly / 3600, market.wait_seconds
    marks, done = [], 0.0  # ends of the checkpoints, on the clock of an undisturbed job
    while done < job.work_seconds - 1e-9:
        trained = min(job.period_seconds, job.work_seconds - done)
        done += trained
        marks.append((marks[-1] if marks else 0.0) + trained + job.checkpoint_seconds)
    end, at, paid, reclaims = marks[-1], 0.0, 0.0, 0
    is_gone = dice.random() < rate * mean / (1 + rate * mean)
    launched = dice.expovariate(1 / mean) if is_gone else 0.0
    while True:
        clock = launched + 180 + 120
        finish = clock + job.restart_seconds + end - at
        stop = clock + dice.expovariate(rate)
        age = min(stop, finish) - launched
        if stop >= finish or age >= 3600:
            paid += age / 3600
        if stop >= finish:
            return finish / 3600, paid, reclaims
        reclaims += 1
        reached = at + max(0.0, stop - clock - job.restart_seconds)
        at = max([at, *(mark for mark in marks if mark <= reached)])
        if dice.random() < job.notice_read and job.checkpoint_seconds <= 120:
            at = max(at, reached - 120)
        launched = stop + 25 + dice.expovariate(1 / mean)


PAIRS = {
    **{name: (JOB, market) for name, market in CASES.items()},
    "some noticed": (dataclasses.replace(LONG, notice_read=0.5), OFTEN),
    "notices that are too short": (
        dataclasses.replace(LONG, notice_read=1.0, checkpoint_seconds=130.0),
        OFTEN,
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_means_are_those_of_a_simulation_written_from_the_page(name: str) -> None:
    job, market = PAIRS[name]
    dice = random.Random(7)
    theirs = np.array([one_run(dice, job, market) for _ in range(3000)])
    runs = simulate(job, market, 20_000, seed=1)
    assert (runs["lost h"] + runs["waiting h"] <= runs["hours"]).all()
    ours = np.stack([runs["hours"], runs["paid h"], runs["reclaims"]], axis=1)
    error = np.sqrt(theirs.var(0) / len(theirs) + ours.var(0) / len(ours))
    far = np.abs(theirs.mean(0) - ours.mean(0)) / error
    assert (far < 3).all(), far
    assert ours[:, 2].mean() > 0.04  # else they would agree on nothing
    for column, (mine, other) in enumerate(zip(ours.T, theirs.T, strict=True)):
        for share in (0.05, 0.5, 0.95):
            value = np.quantile(mine, share)
            below, up_to = (other < value - 1e-6).mean(), (other <= value + 1e-6).mean()
            assert below - 0.02 < share < up_to + 0.02, (column, share, value)


def test_a_run_of_many_lives_goes_on_at_the_pace_of_the_first() -> None:
    """About 250 lives, of which 100 are followed."""
    job = SpotJob(work_seconds=600_000.0, period_seconds=600.0, notice_read=1.0)
    runs, dice = simulate(job, CASES["high"]), random.Random(3)
    theirs = [one_run(dice, job, CASES["high"]) for _ in range(100)]
    for name, figures in zip(
        ("hours", "paid h", "reclaims"), zip(*theirs, strict=True), strict=True
    ):
        assert runs[name].mean() == pytest.approx(statistics.mean(figures), rel=0.03), name


def test_a_run_that_needs_too_many_lives_never_ends() -> None:
    """2,000 lives of 0.72 hours each are 1,440 hours; one that never reaches a checkpoint has no
    end at all.
    """
    high = CASES["high"]
    hours = MOST_LIVES / high.hourly * 3600
    ends = {share: SpotJob(share * hours, 600.0, notice_read=1.0) for share in (0.7, 1.1)}
    assert np.isfinite(simulate(ends[0.7], high)["hours"]).all()
    assert np.isinf(simulate(ends[1.1], high)["hours"]).all()
    assert np.isinf(simulate(SpotJob(1e6, 1e6), high)["paid h"]).all()


def test_the_advised_period_is_young_s() -> None:
    """sqrt(2 C / r), at most half the run."""
    job = dataclasses.replace(JOB, work_seconds=20_000.0, checkpoint_seconds=9.0)
    assert best_period(job, Market(0.36)) == pytest.approx(math.sqrt(2 * 9 * 3600 / 0.36))
    assert best_period(dataclasses.replace(job, work_seconds=80.0), Market(0.36)) == 40.0
