"""A spot job, run thousands of times: what its time and its cost come to, with their spread.

The mechanics, per life of the job (from a start to the reclaim that ends it):

- The machines run, are paid and can be reclaimed while the job restores (`restart_seconds`) and
  while it trains and writes checkpoints. The first reclaim of any machine stops all slots.
- Without notice, what was done since the last checkpoint is lost. With notice (two minutes ahead),
  the step in hand is finished and saved, nothing is lost, and the two minutes are paid.
- Then the master needs `detection_seconds`, a new machine has to be had (`wait_seconds` on average,
  exponential), to boot and to pull the image. The other machines idle and are paid, up to
  `idle_seconds`; after that they are gone and boot again with the new one. Reclaims in this time
  are left out: nothing runs that could be lost.
- A wait longer than `fallback_seconds` moves the rest of the job to on-demand machines.

Runs are columns of NumPy arrays, so a step of the loop is one life of all runs at once.
"""

from dataclasses import dataclass

import numpy as np

from reports.reclaims import Reclaims

NOTICE_SECONDS = 120.0  # how long before a reclaim EC2 says so
MOST_LIVES = 5000  # a run that is not through by then never will be


@dataclass(frozen=True)
class Job:
    """One way to do the work. Seconds throughout; prices in dollars an hour and machine."""

    work_seconds: float  # training alone, on an uninterrupted job
    period_seconds: float  # of training between two checkpoints
    checkpoint_seconds: float
    machines: int
    price: float
    on_demand_price: float
    restart_seconds: float = 60.0  # from the container's start to the first new step
    boot_seconds: float = 180.0
    image_seconds: float = 120.0
    detection_seconds: float = 25.0  # agent_reconnect_wait of the master
    wait_seconds: float = 0.0  # for capacity, on average
    idle_seconds: float = 1200.0  # max_idle_agent_period of the pool
    fallback_seconds: float = float("inf")
    notice_read: float = 0.0  # the share of reclaims whose notice is read in time

    @property
    def segments(self) -> int:
        """Checkpoints that are written, the last one at the end of the work."""
        return max(1, int(np.ceil(self.work_seconds / self.period_seconds - 1e-9)))

    @property
    def total_seconds(self) -> float:
        """Training and checkpoints, without a reclaim."""
        return self.work_seconds + self.segments * self.checkpoint_seconds

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
    lost_hours: np.ndarray  # training that had to be done again
    fell_back: np.ndarray  # whether the run ended on demand


def simulate(job: Job, reclaims: Reclaims, runs: int, seed: int) -> Outcome:
    """`runs` runs of `job`, a function of the seed alone (NumPy's PCG64)."""
    rng = np.random.Generator(np.random.PCG64(seed))
    clock = reclaims.start(rng, runs)  # seconds; where a trace is replayed from
    count, lost, done = np.zeros((3, runs))  # `done` is saved, on the axis of total_seconds
    wait = _wait(job, rng, runs)
    fell_back = wait > job.fallback_seconds
    seconds = np.minimum(wait, job.fallback_seconds) + job.start_seconds
    # Machine-seconds at `price`, and at `on_demand_price`.
    paid = np.where(fell_back, 0.0, job.machines * job.start_seconds)
    on_demand = np.where(fell_back, job.machines * job.start_seconds, 0.0)
    left = np.arange(runs)
    for _ in range(MOST_LIVES):
        if not left.size:
            break
        until = reclaims.next(rng, clock[left] + seconds[left], job.machines)
        until = np.where(fell_back[left], np.inf, until)
        needed = job.restart_seconds + job.total_seconds - done[left]
        lived = np.minimum(needed, until)
        seconds[left] += lived
        on_demand[left] += np.where(fell_back[left], job.machines * lived, 0.0)
        paid[left] += np.where(fell_back[left], 0.0, job.machines * lived)
        stopped = until < needed
        hit, left_for = left[stopped], until[stopped] - job.restart_seconds
        count[hit] += 1
        noticed = rng.random(hit.size) < job.notice_read
        done[hit], more = _saved(job, done[hit], np.maximum(left_for, 0.0), noticed)
        lost[hit] += more
        _replace(job, rng, hit, noticed, seconds, paid, on_demand, fell_back)
        left = hit
    seconds[left] = paid[left] = np.inf
    cost = (paid * job.price + on_demand * job.on_demand_price) / 3600
    return Outcome(seconds / 3600, cost, count, lost / 3600, fell_back)


def _wait(job: Job, rng: np.random.Generator, runs: int) -> np.ndarray:
    return rng.exponential(job.wait_seconds, runs) if job.wait_seconds else np.zeros(runs)


def _saved(
    job: Job, done: np.ndarray, ran: np.ndarray, noticed: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """What is saved after `ran` seconds of training and checkpoints, and what of it is lost.

    A checkpoint at notice must fit into the two minutes, or the notice is of no use.
    """
    segment = job.period_seconds + job.checkpoint_seconds
    reached = done + ran
    last = np.maximum(done, np.floor(reached / segment + 1e-9) * segment)
    kept = noticed & (job.checkpoint_seconds <= NOTICE_SECONDS)
    return np.where(kept, reached, last), np.where(kept, 0.0, reached - last)


def _replace(
    job: Job,
    rng: np.random.Generator,
    hit: np.ndarray,
    noticed: np.ndarray,
    seconds: np.ndarray,
    paid: np.ndarray,
    on_demand: np.ndarray,
    fell_back: np.ndarray,
) -> None:
    """From a reclaim to the next start of the container: time passes, idle machines are paid."""
    notice = np.where(noticed, NOTICE_SECONDS, 0.0)
    wait = _wait(job, rng, hit.size)
    gone = wait > job.fallback_seconds
    wait = np.minimum(wait, job.fallback_seconds)
    down = job.detection_seconds + wait + job.start_seconds
    seconds[hit] += notice + down
    idle = np.minimum(down, job.idle_seconds)
    dropped = (down > job.idle_seconds) & ~gone
    booting = np.where(dropped, job.machines, 1) * job.start_seconds
    stay = job.detection_seconds + np.minimum(wait, job.idle_seconds)
    others = (job.machines - 1) * np.where(gone, stay, idle)
    paid[hit] += job.machines * notice + others + np.where(gone, 0.0, booting)
    on_demand[hit] += np.where(gone, job.machines * job.start_seconds, 0.0)
    fell_back[hit] |= gone
