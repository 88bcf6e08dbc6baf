"""A job on spot machines, run thousands of times, by the rules of reports/README.md and no others.

Runs are columns of NumPy arrays: a step of the loop is one life (start to reclaim) of all runs.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from reports.plan_command import Settings
from reports.prices import FREE_HOUR
from reports.reclaims import Market

NOTICE_SECONDS = 120.0  # how long before a reclaim EC2 says so
DETECTION_SECONDS = 25.0  # agent_reconnect_wait of the master
IDLE_SECONDS = 1200.0  # max_idle_agent_period of the pool
MOST_LIVES = 2000  # a run that is not through by then never will be


@dataclass(frozen=True)
class Job:
    """One way to do the work: seconds of training, in all and between two checkpoints."""

    work_seconds: float
    period_seconds: float
    machines: int
    price: float  # dollars an hour and machine
    on_demand_price: float
    rules: Settings = Settings()

    @property
    def total_seconds(self) -> float:
        """Training and checkpoints, the last one at the end of the work, without a reclaim."""
        segments = max(1, int(np.ceil(self.work_seconds / self.period_seconds - 1e-9)))
        return self.work_seconds + segments * self.rules.checkpoint_seconds

    @property
    def start_seconds(self) -> float:
        """Boot and image: paid, before the container starts."""
        return self.rules.boot_seconds + self.rules.image_seconds

    def saved(self, reached: np.ndarray, done: np.ndarray, noticed: np.ndarray) -> np.ndarray:
        """Where of `total_seconds` a job goes on that was at `reached` when it was stopped."""
        segment = self.period_seconds + self.rules.checkpoint_seconds
        saved = np.maximum(done, np.floor(reached / segment + 1e-9) * segment)
        if self.rules.checkpoint_seconds > NOTICE_SECONDS:  # a checkpoint at notice does not fit
            return saved
        return np.where(noticed, np.maximum(saved, reached - NOTICE_SECONDS), saved)


def simulate(job: Job, market: Market, runs: int, seed: int) -> pd.DataFrame:
    """A row for each run, by the seed alone: hours, cost (infinite: never done) and their parts."""
    rng, machines, rules = np.random.Generator(np.random.PCG64(seed)), job.machines, job.rules
    shift = market.begin(rng, runs)  # where on the market's clock each run begins
    waited = market.first_wait(rng, shift, machines)
    fell = waited > rules.fallback_seconds
    waited = np.minimum(waited, rules.fallback_seconds)
    now = waited.copy()  # seconds since the run was ordered
    columns = 1 if market.all_at_once(machines) else machines
    born = np.repeat(now[:, None], columns, axis=1)  # [runs, machines]: when each was launched
    done, lost, count = np.zeros((3, runs))  # done: what is saved of total_seconds
    paid = np.zeros((2, runs))  # seconds of a machine on spot, and on demand
    left = np.arange(runs)
    for _ in range(MOST_LIVES):
        start = born[left].max(axis=1) + job.start_seconds
        ran, taken = market.next(rng, shift[left] + start, machines)
        ran = np.where(fell[left], np.inf, ran)
        needed = rules.restart_seconds + job.total_seconds - done[left]
        now[left] = start + np.minimum(ran, needed)
        ended, stopped = left[ran >= needed], ran < needed
        paid[fell[ended].astype(int), ended] += (now[ended, None] - born[ended]).mean(axis=1)
        left, ran, taken = left[stopped], ran[stopped], taken[stopped]
        if not left.size:
            break
        count[left] += 1
        reached = done[left] + np.maximum(ran - rules.restart_seconds, 0.0)
        done[left] = job.saved(reached, done[left], rng.random(left.size) < rules.notice_read)
        lost[left] += reached - done[left]
        wait = market.wait(rng, shift[left] + now[left] + DETECTION_SECONDS, machines)
        fell[left] = wait > rules.fallback_seconds
        down = DETECTION_SECONDS + np.minimum(wait, rules.fallback_seconds)
        waited[left] += down - DETECTION_SECONDS
        spent, born[left] = _replaced(rng, now[left], down, fell[left], taken, born[left])
        paid[0, left] += spent
    now[left] = paid[:, left] = np.inf
    cost = machines * (paid[0] * job.price + paid[1] * job.on_demand_price) / 3600
    hours = {"hours": now / 3600, "lost h": lost / 3600, "waiting h": waited / 3600}
    return pd.DataFrame({**hours, "cost": cost, "reclaims": count, "on demand at end": fell})


def _replaced(
    rng: np.random.Generator, now: np.ndarray, down: np.ndarray, fell: np.ndarray,
    taken: np.ndarray, born: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Seconds paid, the mean over the machines, for those that leave; when each was launched.

    Which are taken is drawn at random. One that AWS takes in its first hour is free. The others
    idle, and leave when capacity does not come in IDLE_SECONDS, or the job goes on on demand.
    """
    now, down = now[:, None], down[:, None]
    hit = rng.random(born.shape).argsort(axis=1).argsort(axis=1) < taken[:, None]
    leave, age = fell[:, None] | (down > IDLE_SECONDS), now - born
    charged = np.where(age < FREE_HOUR * 3600, 0.0, age)
    idle = np.where(leave, age + np.minimum(down, IDLE_SECONDS), 0.0)
    return np.where(hit, charged, idle).mean(axis=1), np.where(hit | leave, now + down, born)
