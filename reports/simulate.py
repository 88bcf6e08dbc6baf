"""Simulation and expectation of a job on spot machines, by the rules of reports/README.md.

Runs are NumPy arrays: one iteration of the loop is one life (launch to reclaim) of all runs.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from cluster.prices import FREE_HOUR
from reports.market import Constant, Market
from reports.settings import Settings

NOTICE_SECONDS = 120.0  # how long before a reclaim EC2 says so
DETECTION_SECONDS = 25.0  # agent_reconnect_wait of the master
MOST_LIVES = 2000  # a run that is not through by then never will be
LONGEST = 1800.0  # seconds of work that an advised period may put at stake
BEARS = 1.10  # at the high rate an advised period takes at most so much more than the best
MOST = 100_000  # periods that are looked at


@dataclass(frozen=True)
class Job:
    """An option for the work: seconds of training, in total and between two checkpoints."""

    work_seconds: float
    period_seconds: float
    machines: int
    price: float  # dollars an hour and machine
    rules: Settings = Settings()

    @property
    def total_seconds(self) -> float:
        """Seconds of training and checkpoints, the last one at the end, without a reclaim."""
        segments = max(1, int(np.ceil(self.work_seconds / self.period_seconds - 1e-9)))
        return self.work_seconds + segments * self.rules.checkpoint_seconds

    @property
    def start_seconds(self) -> float:
        """Seconds for boot and image: paid, before the container starts."""
        return self.rules.boot_seconds + self.rules.image_seconds

    def saved(self, reached: np.ndarray, done: np.ndarray, noticed: np.ndarray) -> np.ndarray:
        """Return the progress in `total_seconds` from which a job stopped at `reached` resumes."""
        segment = self.period_seconds + self.rules.checkpoint_seconds
        saved = np.maximum(done, np.floor(reached / segment + 1e-9) * segment)
        if self.rules.checkpoint_seconds > NOTICE_SECONDS:  # a checkpoint at notice does not fit
            return saved
        return np.where(noticed, np.maximum(saved, reached - NOTICE_SECONDS), saved)


def simulate(job: Job, market: Market, runs: int, seed: int) -> pd.DataFrame:
    """Return a row per run, by the seed alone: hours, cost (infinite: never done), their parts."""
    rng, rules = np.random.Generator(np.random.PCG64(seed)), job.rules
    # Where on the market's clock each run begins.
    shift = rng.uniform(0, market.length, runs) if market.length else np.zeros(runs)
    now = market.first_wait(rng, shift, job.machines)  # seconds since the run was ordered
    waited, left = now.copy(), np.arange(runs)
    done, lost, paid, count = np.zeros((4, runs))  # done: what is saved of total_seconds
    for _ in range(MOST_LIVES):
        start = now[left] + job.start_seconds
        until = market.next(rng, shift[left] + start, job.machines)
        needed = rules.restart_seconds + job.total_seconds - done[left]
        stopped, ran = until < needed, np.minimum(until, needed)
        up = job.start_seconds + ran
        paid[left] += np.where(stopped & (up < FREE_HOUR * 3600), 0.0, up)
        now[left] = start + ran
        left, ran = left[stopped], ran[stopped]
        if not left.size:
            break
        count[left] += 1
        reached = done[left] + np.maximum(ran - rules.restart_seconds, 0.0)
        done[left] = job.saved(reached, done[left], rng.random(left.size) < rules.notice_read)
        lost[left] += reached - done[left]
        now[left] += DETECTION_SECONDS
        wait = market.wait(rng, shift[left] + now[left], job.machines)
        waited[left] += wait
        now[left] += wait
    now[left] = paid[left] = np.inf
    hours = pd.DataFrame({"hours": now, "lost h": lost, "waiting h": waited}) / 3600
    return hours.assign(cost=paid / 3600 * job.machines * job.price, reclaims=count)


def running_seconds(job: Job, market: Constant, periods: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return expected running seconds, and reclaims, for each period in seconds: exact.

    With L reclaims per second, segments of s seconds (training and a checkpoint) and restarts of R
    seconds that can be interrupted, a segment has e^(LR) (e^(Ls) - 1) reclaims, the first restart
    e^(LR) - 1 more, and the running time is all of them over L. Without notices. After Bougeret et
    al. 2011, "Checkpointing strategies for parallel jobs", with downtime that cannot fail.
    """
    rate = max(market.rate, 1e-12)
    count = np.maximum(np.ceil(job.work_seconds / periods - 1e-9), 1)
    last = job.work_seconds - (count - 1) * periods + job.rules.checkpoint_seconds
    with np.errstate(over="ignore", invalid="ignore"):
        full = (count - 1) * np.expm1(rate * (periods + job.rules.checkpoint_seconds))
        again = np.exp(rate * job.rules.restart_seconds)
        reclaims = again - 1 + again * (full + np.expm1(rate * last))
    reclaims = np.where(np.isnan(reclaims), np.inf, reclaims)
    return reclaims / rate, reclaims


def best_period(job: Job, middle: Constant, high: Constant, step: float) -> int:
    """Return the steps between checkpoints with the least machine time at the middle rate.

    A period is at most LONGEST or half the run, and its machine time at the high rate at most BEARS
    times the least there.
    """
    most = max(1, int(min(LONGEST, job.work_seconds / 2) / step))
    steps = np.unique(np.linspace(1, most, min(most, MOST)).round().astype(int))
    usual, worst = (
        seconds + reclaims * job.start_seconds
        for seconds, reclaims in (running_seconds(job, m, steps * step) for m in (middle, high))
    )
    return int(steps[np.argmin(np.where(worst <= BEARS * worst.min(), usual, np.inf))])
