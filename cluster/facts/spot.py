"""A job on the spot market: reclaims, waits and their simulation (planning.md).

Runs are NumPy arrays: one iteration of the loop is one life (launch to reclaim) of all runs. A run
of many lives is not followed to its end: by then each life brings as much as the one before.
"""

import math
from dataclasses import dataclass

import numpy as np

from cluster.facts.prices import FREE_HOUR

NOTICE_SECONDS = 120.0  # how long before a reclaim EC2 says so
BOOT_SECONDS = 180.0 + 120.0  # of machine and image: paid, before the container starts
DETECTION_SECONDS = 25.0  # agent_reconnect_wait of the master
MAX_LOST_SECONDS = 900.0  # of work that a reclaim without notice may cost every slot

RUNS = 4000  # that are simulated
FEWER_RUNS = 500  # of which so many are followed beyond SHORT_LIVES: their means vary less
SHORT_LIVES = 25
FOLLOWED_LIVES = 100  # the rest goes on at the pace of these
MOST_LIVES = 2000  # a run that needs more never ends


@dataclass(frozen=True)
class Market:
    """Memoryless market: `hourly` reclaims of a job, and exponential waits for capacity.

    A reclaim takes all machines of a job: jobs on 16 recorded machines were stopped as often as
    those on one (0.5 to 0.6 per hour), so the machines of a zone are reclaimed together.
    """

    hourly: float
    wait_seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Reclaims per second."""
        return self.hourly / 3600

    def first_wait(self, rng: np.random.Generator, runs: int) -> np.ndarray:
        """Draw the seconds from a random moment until the machines are available."""
        # Of waits of `wait_seconds` between lives of 1 / rate, this share of the time is waiting.
        ratio = self.rate * self.wait_seconds
        is_waiting = rng.random(runs) < ratio / (1 + ratio)
        return np.where(is_waiting, self.wait(rng, runs), 0.0)

    def wait(self, rng: np.random.Generator, runs: int) -> np.ndarray:
        """Draw the seconds from a reclaim until the machines are available."""
        return rng.exponential(self.wait_seconds, runs)

    def until_reclaim(self, rng: np.random.Generator, runs: int) -> np.ndarray:
        """Draw the seconds to the first reclaim."""
        return rng.exponential(1 / max(self.rate, 1e-300), runs)


# How spot may go, recorded on V100s by github.com/skypilot-org/spot-traces ("Can't be late", NSDI
# 2024): machines lost over machine-hours up, and how long the capacity was gone on average. 23
# traces of 2022 and 2023 have 0.06 to 1.39 an hour. No newer type is recorded: that they fare alike
# is assumed.
CASES = {
    # us-east-2a, August 2023; the wait is assumed
    "low": Market(hourly=0.060, wait_seconds=120.0),
    # us-west-2c, August 2023
    "middle": Market(hourly=0.236, wait_seconds=3600.0),
    # us-east-1a, February 2023; wait: us-east-1f, August 2023
    "high": Market(hourly=1.390, wait_seconds=14160.0),
}
ON_DEMAND = Market(hourly=0.0)


@dataclass(frozen=True)
class SpotJob:
    """An option for the work: seconds of training, in total and between two checkpoints, of a
    checkpoint, and from a container's start to the first step.
    """

    work_seconds: float
    period_seconds: float
    checkpoint_seconds: float = 25.0
    restart_seconds: float = 60.0
    notice_read: float = 0.0  # share of the reclaims

    @property
    def total_seconds(self) -> float:
        """Seconds of training and checkpoints, the last one at the end, without a reclaim."""
        segments = count_segments(self.work_seconds / self.period_seconds)
        return self.work_seconds + segments * self.checkpoint_seconds

    @property
    def up_seconds(self) -> float:
        """Seconds for which a machine is up without a reclaim."""
        return BOOT_SECONDS + self.restart_seconds + self.total_seconds

    def saved(self, reached: np.ndarray, done: np.ndarray, noticed: np.ndarray) -> np.ndarray:
        """Return the progress in `total_seconds` from which a job stopped at `reached` resumes."""
        segment = self.period_seconds + self.checkpoint_seconds
        last_segment = np.floor(reached / segment + 1e-9)
        saved = np.maximum(done, last_segment * segment)
        if self.checkpoint_seconds > NOTICE_SECONDS:  # a checkpoint at notice does not fit
            return saved
        saved_at_notice = np.maximum(saved, reached - NOTICE_SECONDS)
        return np.where(noticed, saved_at_notice, saved)


def count_segments(periods: float) -> int:
    """Return how many segments, each with a checkpoint at its end, so many periods make."""
    return max(1, math.ceil(periods - 1e-9))  # a sum that rounds up is no segment


def simulate(
    job: SpotJob, market: Market, runs: int = RUNS, seed: int = 0
) -> dict[str, np.ndarray]:
    """Return figures of each run, by the seed alone: hours until the end and hours paid of a
    machine (infinite: never done), hours lost and waited, and the number of reclaims.
    """
    # All arrays are float64 [runs], in seconds but for `reclaims`.
    rng = np.random.Generator(np.random.PCG64(seed))
    now = market.first_wait(rng, runs)  # since the run was ordered
    waited = now.copy()
    done = np.zeros(runs)  # progress in total_seconds that is saved
    lost = np.zeros(runs)
    paid = np.zeros(runs)  # of a machine
    reclaims = np.zeros(runs)
    left = np.arange(runs)  # indices of the runs that have not ended
    for life in range(FOLLOWED_LIVES):
        # Runs of many lives differ less in their means: some of them are enough.
        if life == SHORT_LIVES and len(left) > runs / 2 and runs > FEWER_RUNS:
            arrays = [array[:FEWER_RUNS] for array in (now, waited, done, lost, paid, reclaims)]
            now, waited, done, lost, paid, reclaims = arrays
            left = left[left < FEWER_RUNS]

        # From the launch to the reclaim or the end.
        until_reclaim = market.until_reclaim(rng, len(left))
        needed = job.restart_seconds + job.total_seconds - done[left]
        stopped = until_reclaim < needed
        ran = np.minimum(until_reclaim, needed)
        up = BOOT_SECONDS + ran
        free = stopped & (up < FREE_HOUR * 3600)
        paid[left] += np.where(free, 0.0, up)
        now[left] += up
        left = left[stopped]
        ran = ran[stopped]
        if not len(left):
            break

        # From the reclaim to the next launch.
        reclaims[left] += 1
        reached = done[left] + np.maximum(ran - job.restart_seconds, 0.0)
        noticed = rng.random(len(left)) < job.notice_read
        done[left] = job.saved(reached, done[left], noticed)
        lost[left] += reached - done[left]
        wait = market.wait(rng, len(left))
        waited[left] += wait
        now[left] += DETECTION_SECONDS + wait
    if len(left):
        _extrapolate(job, done, left, amounts=(now, paid, lost, waited, reclaims))
    return {
        "hours": now / 3600,
        "paid h": paid / 3600,
        "lost h": lost / 3600,
        "waiting h": waited / 3600,
        "reclaims": reclaims,
    }


def _extrapolate(
    job: SpotJob, done: np.ndarray, left: np.ndarray, amounts: tuple[np.ndarray, ...]
) -> None:
    """Continue the runs `left`, all of FOLLOWED_LIVES, at their common pace until their end.

    Args:
        done: progress of all runs, in `total_seconds`.
        amounts: of all runs, to be increased: hours, and what else grows with each life.
    """
    progress = done[left].mean() / job.total_seconds  # share of the run after FOLLOWED_LIVES
    never_ends = progress * MOST_LIVES < FOLLOWED_LIVES
    for amount in amounts:
        per_run = np.inf if never_ends else amount[left].mean() / progress
        amount[left] += per_run * (1 - done[left] / job.total_seconds)


def best_period(job: SpotJob, market: Market, longest: float = MAX_LOST_SECONDS) -> float:
    """Return the seconds of training between checkpoints that lose the least time (Young 1974).

    With a checkpoint of 25 s and 0.236 reclaims an hour: sqrt(2 * 25 * 3600 / 0.236) = 873 s. At
    most `longest` seconds or half the run.
    """
    best = math.sqrt(2 * job.checkpoint_seconds / max(market.rate, 1e-12))
    return min(best, longest, job.work_seconds / 2)
