"""A job on spot machines, run thousands of times: what its time and cost come to, with the spread.

The rules are those of "How a plan is made" in reports/README.md, and no others. Runs are columns of
NumPy arrays, so a step of the loop is one life (from a start to a reclaim) of all runs at once.
"""

from dataclasses import dataclass

import numpy as np

from reports.prices import FREE_HOUR
from reports.reclaims import Market

NOTICE_SECONDS = 120.0  # how long before a reclaim EC2 says so
MOST_LIVES = 2000  # a run that is not through by then never will be


@dataclass(frozen=True)
class Job:
    """One way to do the work. Seconds throughout; prices in dollars an hour and machine."""

    work_seconds: float  # training alone, on an uninterrupted job
    period_seconds: float  # of training between two checkpoints
    machines: int
    price: float
    on_demand_price: float
    checkpoint_seconds: float = 25.0
    restart_seconds: float = 60.0  # from the container's start to the first new step
    boot_seconds: float = 180.0
    image_seconds: float = 120.0
    detection_seconds: float = 25.0  # agent_reconnect_wait of the master
    idle_seconds: float = 1200.0  # max_idle_agent_period of the pool
    fallback_seconds: float = float("inf")
    notice_read: float = 0.0  # the share of reclaims whose notice is read in time

    @property
    def total_seconds(self) -> float:
        """Training and checkpoints, the last one at the end of the work, without a reclaim."""
        segments = max(1, int(np.ceil(self.work_seconds / self.period_seconds - 1e-9)))
        return self.work_seconds + segments * self.checkpoint_seconds

    @property
    def start_seconds(self) -> float:
        """Boot and image: paid, before the container starts."""
        return self.boot_seconds + self.image_seconds


@dataclass(frozen=True)
class Outcome:
    """One value per run. `hours` and `cost` are infinite where a run does not finish."""

    hours: np.ndarray
    cost: np.ndarray
    reclaims: np.ndarray
    lost_hours: np.ndarray  # training and checkpoints that had to be done again
    waited_hours: np.ndarray  # for capacity
    fell_back: np.ndarray  # whether the run ended on demand


def simulate(job: Job, market: Market, runs: int, seed: int) -> Outcome:
    """`runs` runs of `job`, a function of the seed alone (NumPy's PCG64)."""
    rng = np.random.Generator(np.random.PCG64(seed))
    shift = market.begin(rng, runs)  # where on the market's clock each run begins
    waited = market.first_wait(rng, shift, job.machines)
    fell = waited > job.fallback_seconds
    waited = np.minimum(waited, job.fallback_seconds)
    now = waited.copy()  # of a run: seconds since it was ordered
    columns = 1 if market.all_at_once(job.machines) else job.machines
    born = np.repeat(now[:, None], columns, axis=1)  # [runs, machines]: when each was launched
    done, lost, count, spot, fixed = np.zeros((5, runs))  # `done` is saved, of total_seconds
    left = np.arange(runs)
    for _ in range(MOST_LIVES):
        start = np.max(born[left], axis=1) + job.start_seconds
        ran, taken = market.next(rng, shift[left] + start, job.machines)
        ran = np.where(fell[left], np.inf, ran)
        needed = job.restart_seconds + job.total_seconds - done[left]
        now[left] = start + np.minimum(ran, needed)
        ended, stopped = left[ran >= needed], ran < needed
        life = (now[ended, None] - born[ended]).mean(axis=1)
        spot[ended] += np.where(fell[ended], 0.0, life)
        fixed[ended] += np.where(fell[ended], life, 0.0)
        left = left[stopped]
        if not left.size:
            break
        count[left] += 1
        noticed = rng.random(left.size) < job.notice_read
        saved, gone = _saved(job, done[left], ran[stopped] - job.restart_seconds, noticed)
        done[left], lost[left] = saved, lost[left] + gone
        wait = market.wait(rng, shift[left] + now[left] + job.detection_seconds, job.machines)
        fell[left] = wait > job.fallback_seconds
        wait = np.minimum(wait, job.fallback_seconds)
        waited[left] += wait
        hit = _hit(rng, taken[stopped], columns, job.machines)
        paid, born[left] = _replaced(job, now[left], wait, fell[left], hit, born[left])
        spot[left] += paid
    now[left] = spot[left] = np.inf
    cost = job.machines * (spot * job.price + fixed * job.on_demand_price) / 3600
    return Outcome(now / 3600, cost, count, lost / 3600, waited / 3600, fell)


def _saved(
    job: Job, done: np.ndarray, ran: np.ndarray, noticed: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """What is saved after `ran` seconds of training and checkpoints, and what of it is lost."""
    segment = job.period_seconds + job.checkpoint_seconds
    reached = done + np.maximum(ran, 0.0)
    saved = np.maximum(done, np.floor(reached / segment + 1e-9) * segment)
    if job.checkpoint_seconds <= NOTICE_SECONDS:  # else a checkpoint at notice does not fit
        saved = np.where(noticed, np.maximum(saved, reached - NOTICE_SECONDS), saved)
    return saved, reached - saved


def _hit(rng: np.random.Generator, taken: np.ndarray, columns: int, machines: int) -> np.ndarray:
    """[runs, columns]: which machines of each run are taken, at random."""
    if columns == 1 or (taken == machines).all():
        return np.ones((taken.size, columns), dtype=bool)
    order = rng.random((taken.size, columns)).argsort(axis=1).argsort(axis=1)
    return order < taken[:, None]


def _replaced(
    job: Job,
    now: np.ndarray,
    wait: np.ndarray,
    fell: np.ndarray,
    hit: np.ndarray,
    born: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Seconds paid, averaged over the machines, for those that leave; when each was launched.

    A machine that AWS takes in its first hour is free. The others idle, and leave when capacity
    does not come in `idle_seconds`, or when the job goes on on demand.
    """
    down = job.detection_seconds + wait
    leave = (fell | (down > job.idle_seconds))[:, None]
    age = now[:, None] - born
    free = age < FREE_HOUR * 3600
    idle = age + np.minimum(down, job.idle_seconds)[:, None]
    paid = np.where(hit, np.where(free, 0.0, age), np.where(leave, idle, 0.0))
    return paid.mean(axis=1), np.where(hit | leave, (now + down)[:, None], born)
