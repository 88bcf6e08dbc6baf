"""A job on the spot market: reclaims, waits and their simulation (planning.md).

Runs are NumPy arrays: one iteration of the loop is one life (launch to reclaim) of all runs.
"""

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd

from cluster.facts.prices import FREE_HOUR

NOTICE_SECONDS = 120.0  # how long before a reclaim EC2 says so
BOOT_SECONDS = 180.0 + 120.0  # of machine and image: paid, before the container starts
DETECTION_SECONDS = 25.0  # agent_reconnect_wait of the master
MOST_LIVES = 2000  # a run that is not through by then never will be
LONGEST = 900.0  # seconds of work that a reclaim without notice may cost every slot


@dataclass(frozen=True)
class Constant:
    """Memoryless market: `hourly` reclaims of a job, and exponential waits for capacity.

    A reclaim takes all machines of a job: jobs on 16 recorded machines were stopped as often as
    those on one (0.5 to 0.6 per hour), so the machines of a zone are reclaimed together.
    """

    hourly: float
    wait_seconds: float = 0.0
    length = 0.0  # of a recording

    @property
    def rate(self) -> float:
        """Reclaims per second."""
        return self.hourly / 3600

    def first_wait(self, rng: np.random.Generator, now: np.ndarray, machines: int) -> np.ndarray:
        """Draw seconds from a random moment until the machines are available."""
        busy = self.rate * self.wait_seconds
        out = rng.random(now.size) < busy / (1 + busy)
        return np.where(out, self.wait(rng, now, machines), 0.0)

    def wait(self, rng: np.random.Generator, now: np.ndarray, machines: int) -> np.ndarray:
        """Draw seconds from a reclaim until the machines are available."""
        return rng.exponential(self.wait_seconds, now.size)

    def next(self, rng: np.random.Generator, now: np.ndarray, machines: int) -> np.ndarray:
        """Draw seconds from `now` to the first reclaim."""
        return rng.exponential(1 / max(self.rate, 1e-300), now.shape)

    def alike(self) -> "Constant":
        return self


# How spot may go, recorded on V100s by github.com/skypilot-org/spot-traces ("Can't be late", NSDI
# 2024): machines lost over machine-hours up, and how long the capacity was gone on average. 23
# traces of 2022 and 2023 have 0.06 to 1.39 an hour. No newer type is recorded: that they fare alike
# is assumed.
CASES = {
    "low": Constant(0.060, 120.0),  # us-east-2a, August 2023; the wait is assumed
    "middle": Constant(0.236, 3600.0),  # us-west-2c, August 2023
    "high": Constant(1.390, 14160.0),  # us-east-1a, February 2023; wait: us-east-1f, August 2023
}


@dataclass(frozen=True)
class SpotJob:
    """An option for the work: seconds of training, in total and between two checkpoints, of a
    checkpoint, and from a container's start to the first step.
    """

    work_seconds: float
    period_seconds: float
    machines: int
    price: float  # dollars an hour and machine
    checkpoint_seconds: float = 25.0
    restart_seconds: float = 60.0
    notice_read: float = 0.0  # share of the reclaims

    @property
    def total_seconds(self) -> float:
        """Seconds of training and checkpoints, the last one at the end, without a reclaim."""
        segments = max(1, int(np.ceil(self.work_seconds / self.period_seconds - 1e-9)))
        return self.work_seconds + segments * self.checkpoint_seconds

    def saved(self, reached: np.ndarray, done: np.ndarray, noticed: np.ndarray) -> np.ndarray:
        """Return the progress in `total_seconds` from which a job stopped at `reached` resumes."""
        segment = self.period_seconds + self.checkpoint_seconds
        saved = np.maximum(done, np.floor(reached / segment + 1e-9) * segment)
        if self.checkpoint_seconds > NOTICE_SECONDS:  # a checkpoint at notice does not fit
            return saved
        return np.where(noticed, np.maximum(saved, reached - NOTICE_SECONDS), saved)


def simulate(job: SpotJob, market: Constant, runs: int, seed: int = 0) -> pd.DataFrame:
    """Return a row per run, by the seed alone: hours, cost (infinite: never done), their parts."""
    rng = np.random.Generator(np.random.PCG64(seed))
    # Where on the market's clock each run begins.
    shift = rng.uniform(0, market.length, runs) if market.length else np.zeros(runs)
    now = market.first_wait(rng, shift, job.machines)  # seconds since the run was ordered
    waited, left = now.copy(), np.arange(runs)
    done, lost, paid, count = np.zeros((4, runs))  # done: what is saved of total_seconds
    for _ in range(MOST_LIVES):
        start = now[left] + BOOT_SECONDS
        until = market.next(rng, shift[left] + start, job.machines)
        needed = job.restart_seconds + job.total_seconds - done[left]
        stopped, ran = until < needed, np.minimum(until, needed)
        up = BOOT_SECONDS + ran
        paid[left] += np.where(stopped & (up < FREE_HOUR * 3600), 0.0, up)
        now[left] = start + ran
        left, ran = left[stopped], ran[stopped]
        if not left.size:
            break
        count[left] += 1
        reached = done[left] + np.maximum(ran - job.restart_seconds, 0.0)
        done[left] = job.saved(reached, done[left], rng.random(left.size) < job.notice_read)
        lost[left] += reached - done[left]
        now[left] += DETECTION_SECONDS
        wait = market.wait(rng, shift[left] + now[left], job.machines)
        waited[left] += wait
        now[left] += wait
    now[left] = paid[left] = np.inf
    hours = pd.DataFrame({"hours": now, "lost h": lost, "waiting h": waited}) / 3600
    return hours.assign(cost=paid / 3600 * job.machines * job.price, reclaims=count)


def best_period(job: SpotJob, market: Constant, longest: float = LONGEST) -> float:
    """Return the seconds of training between checkpoints that lose the least time (Young 1974).

    With a checkpoint of 25 s and 0.236 reclaims an hour: sqrt(2 * 25 * 3600 / 0.236) = 873 s. At
    most `longest` seconds or half the run.
    """
    best = math.sqrt(2 * job.checkpoint_seconds / max(market.rate, 1e-12))
    return min(best, longest, job.work_seconds / 2)
