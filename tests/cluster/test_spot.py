"""The spot simulation: against another one written from planning.md, its periods, traces."""

import dataclasses
import json
import math
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cluster.facts.spot import (
    CASES,
    Constant,
    SpotJob,
    Trace,
    best_period,
    load_trace,
    simulate,
)  # fmt: skip

# The published 64-slot job on eight spot p3.16xlarge.
JOB = SpotJob(work_seconds=2850, period_seconds=300, machines=8, price=7.344)


class Steady:
    """Reclaims at a constant rate, from the page's words."""

    def __init__(self, hourly: float, wait: float) -> None:
        self.hourly, self.mean = hourly, wait

    def stop(self, dice: random.Random, now: float, n: int) -> float:
        return now + dice.expovariate(self.hourly / 3600) if self.hourly else math.inf

    def again(self, dice: random.Random, now: float, n: int) -> float:
        return dice.expovariate(1 / self.mean) if self.mean else 0.0

    def first(self, dice: random.Random, now: float, n: int) -> float:
        rate = self.hourly / 3600
        gone = rate * self.mean / (1 + rate * self.mean)
        return self.again(dice, now, n) if dice.random() < gone else 0.0


class Replayed:
    """A recording, walked from one change to the next."""

    def __init__(self, rows: list[tuple[float, int]]) -> None:  # hours, machines; the last: the end
        self.rows = [(hours * 3600, count) for hours, count in rows[:-1]]
        self.length = rows[-1][0] * 3600

    def changes(self, now: float):
        lap = math.floor(now / self.length)
        while True:
            yield from ((lap * self.length + at, count) for at, count in self.rows)
            lap += 1

    def there(self, now: float) -> int:
        return [count for at, count in self.rows if at <= now % self.length][-1]

    def stop(self, dice: random.Random, now: float, n: int) -> float:
        count = self.there(now)
        if count < n:
            return now
        for at, left in self.changes(now):
            if at <= now:
                continue
            if left < count:
                mine = [True] * n + [False] * (count - n)
                if any(dice.sample(mine, count - left)):
                    return at
            count = left
        raise AssertionError

    def again(self, dice: random.Random, now: float, n: int) -> float:
        if self.there(now) >= n:
            return 0.0
        return next(at for at, count in self.changes(now) if at > now and count >= n) - now

    first = again


def one_run(dice: random.Random, job: SpotJob, market: Steady | Replayed) -> tuple[float, ...]:
    """Hours, dollars, reclaims: event by event, from "How a plan is made" alone."""
    n = job.machines
    offset = dice.uniform(0, market.length) if isinstance(market, Replayed) else 0.0
    marks, done = [], 0.0  # ends of the checkpoints, on the clock of an undisturbed job
    while done < job.work_seconds - 1e-9:
        trained = min(job.period_seconds, job.work_seconds - done)
        done += trained
        marks.append((marks[-1] if marks else 0.0) + trained + job.checkpoint_seconds)
    end, at, dollars, reclaims = marks[-1], 0.0, 0.0, 0
    launched = market.first(dice, offset, n)
    while True:
        clock = launched + 180 + 120
        finish = clock + job.restart_seconds + end - at
        stop = market.stop(dice, offset + clock, n) - offset
        age = min(stop, finish) - launched
        if stop >= finish or age >= 3600:
            dollars += n * age / 3600 * job.price
        if stop >= finish:
            return finish / 3600, dollars, reclaims
        reclaims += 1
        reached = at + max(0.0, stop - clock - job.restart_seconds)
        at = max([at, *(mark for mark in marks if mark <= reached)])
        if dice.random() < job.notice_read and job.checkpoint_seconds <= 120:
            at = max(at, reached - 120)
        launched = stop + 25 + market.again(dice, offset + stop + 25, n)


ROWS = [(0, 8), (2.0, 5), (2.2, 8), (6.5, 0), (9, 8), (11, 12), (13, 9)]
ROWS += [(15, 8), (15.5, 3), (18, 4), (18.3, 8), (24, 8)]
HOURS, COUNTS = np.array(ROWS[:-1]).T
TRACE = Trace(HOURS * 3600, COUNTS.astype(int), 24 * 3600.0)
LONG = dataclasses.replace(JOB, work_seconds=30_000.0, period_seconds=700.0)
PAIRS: dict[str, tuple[SpotJob, Constant | Trace, Callable[[], Steady | Replayed]]] = {
    **{name: (JOB, case, lambda case=case: Steady(case.hourly, case.wait_seconds))
       for name, case in CASES.items()},
    "some noticed": (
        dataclasses.replace(LONG, notice_read=0.5), Constant(0.3, 600), lambda: Steady(0.3, 600)
    ),
    "a trace": (LONG, TRACE, lambda: Replayed(ROWS)),
    "a trace on part of its machines": (
        dataclasses.replace(LONG, machines=3), TRACE, lambda: Replayed(ROWS)
    ),
    "a trace, some noticed": (
        dataclasses.replace(LONG, machines=5, notice_read=0.5), TRACE, lambda: Replayed(ROWS)
    ),
    "notices that are too short": (
        dataclasses.replace(LONG, notice_read=1.0, checkpoint_seconds=130.0), Constant(0.3, 600),
        lambda: Steady(0.3, 600),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
def test_means_are_those_of_a_simulation_written_from_the_page(name):
    job, market, other = PAIRS[name]
    dice = random.Random(7)
    theirs = np.array([one_run(dice, job, other()) for _ in range(3000)])
    runs = simulate(job, market, 20_000, seed=1)
    assert (runs["lost h"] + runs["waiting h"] <= runs["hours"]).all()
    ours = runs[["hours", "cost", "reclaims"]].to_numpy()
    error = np.sqrt(theirs.var(0) / len(theirs) + ours.var(0) / len(ours))
    far = np.abs(theirs.mean(0) - ours.mean(0)) / error
    assert (far < 3).all(), far
    assert ours[:, 2].mean() > 0.04  # else they would agree on nothing
    for column, (mine, other) in enumerate(zip(ours.T, theirs.T, strict=True)):
        for share in (0.05, 0.5, 0.95):
            value = np.quantile(mine, share)
            below, up_to = (other < value - 1e-6).mean(), (other <= value + 1e-6).mean()
            assert below - 0.02 < share < up_to + 0.02, (column, share, value)


MIDDLE, HIGH = CASES["middle"], CASES["high"]


def test_the_advised_period_is_young_s() -> None:
    """sqrt(2 C / r), at most half the run."""
    job = dataclasses.replace(JOB, work_seconds=20_000.0, checkpoint_seconds=9.0)
    assert best_period(job, Constant(0.36)) == pytest.approx(math.sqrt(2 * 9 * 3600 / 0.36))
    assert best_period(dataclasses.replace(job, work_seconds=80.0), Constant(0.36)) == 40.0


def test_traces_are_read_from_a_table_and_from_a_recording(tmp_path: Path) -> None:
    trace, other = tmp_path / "trace.csv", tmp_path / "trace.json"
    trace.write_text("hours,machines\n0,8\n2,7\n2.5,8\n10,0\n")
    read = load_trace(trace)
    assert (list(read.seconds), list(read.machines)) == ([0, 7200, 9000], [8, 7, 8])
    alike = read.alike()
    assert alike.hourly == pytest.approx(1 / 79.5) and alike.wait_seconds == pytest.approx(1800)
    other.write_text(json.dumps({"metadata": {"gap_seconds": 1800}, "data": [4, 4, 0, 4]}))
    assert list(load_trace(other).seconds) == [0, 1800, 3600, 5400]
    assert (read.length, load_trace(other).length) == (36_000, 7200)
