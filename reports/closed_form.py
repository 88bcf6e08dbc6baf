"""Expectations at a constant rate, exact: what a checkpoint period is chosen by.

After Bougeret et al. 2011, "Checkpointing strategies for parallel jobs" (downtime without
failures), with AWS's free first hour. With L reclaims a second, segments of s seconds (training and
checkpoint) and restarts of R seconds that can be interrupted:

    reclaims in a segment  e^(LR) (e^(Ls) - 1), and e^(LR) - 1 more in the first restart
    running time           the reclaims / L

Each reclaim starts a life at the head of its segment. A life with x seconds to the end of the work
is taken in its first hour, after t < y = min(x, 3600 - boot), for nothing. That saves on average
the integral of L e^(-Lt) (boot + t) dt from 0 to y: a - e^(-Ly) (a + y) with a = boot + 1/L.
"""

from typing import NamedTuple

import numpy as np

from reports.prices import FREE_HOUR
from reports.reclaims import Constant
from reports.simulate import Job

LONGEST = 1800.0  # seconds of work that an advised period may put at stake
BEARS = 1.10  # an advised period costs at most so much more, at the high rate, than the best
MOST = 100_000  # periods that are looked at


class Expected(NamedTuple):
    """One value per period; infinite where a job practically never finishes."""

    hours: np.ndarray
    cost: np.ndarray
    reclaims: np.ndarray


def expected(job: Job, market: Constant, periods: np.ndarray) -> Expected:
    """Time and cost at each period (seconds): no notice is read, nothing falls back on demand.

    The cost is that of machines that are taken together.
    """
    periods, rate = periods.astype(float), max(market.rate(job.machines), 1e-12)
    checkpoint, restart, boot = job.checkpoint_seconds, job.restart_seconds, job.start_seconds
    count = np.maximum(np.ceil(job.work_seconds / periods - 1e-9), 1)
    segment = periods + checkpoint
    last = job.work_seconds - (count - 1) * periods + checkpoint
    with np.errstate(over="ignore", invalid="ignore"):
        each, end = (np.exp(rate * restart) * np.expm1(rate * s) for s in (segment, last))
        lives = np.expm1(rate * restart) + (count - 1) * each + end
        running = lives / rate
        wait = market.wait_seconds
        down = job.detection_seconds + wait + boot
        seconds = market.out(job.machines) * wait + boot + running + lives * down
        saved = _free(rate, boot, restart, count, segment, last, each, end)
        paid = boot + running + lives * boot - saved
    hours, cost = seconds / 3600, job.machines * job.price * paid / 3600
    return Expected(
        *(np.where(np.isfinite(found), found, np.inf) for found in (hours, cost, lives))
    )


def _free(
    rate: float,
    boot: float,
    restart: float,
    count: np.ndarray,
    segment: np.ndarray,
    last: np.ndarray,
    each: np.ndarray,
    end: np.ndarray,
) -> np.ndarray:
    """Seconds of machines that AWS takes in their first hour, the mean over all runs."""
    hour = max(FREE_HOUR * 3600 - boot, 0.0)
    a = boot + 1 / rate

    def free(left: np.ndarray) -> np.ndarray:
        y = np.minimum(left, hour)
        return a - np.exp(-rate * y) * (a + y)

    whole = restart + last + (count - 1) * segment
    first = np.where(count > 1, each, end) + np.expm1(rate * restart)
    final = np.where(count > 1, end * free(restart + last), 0.0)
    # The segments between: i before the last, the near ones within the hour of the end.
    near = np.clip(np.ceil((hour - restart - last) / segment), 1, np.maximum(count - 1, 1))
    far = np.maximum(count - 1 - near, 0) * free(np.full_like(segment, np.inf))
    q = np.exp(-rate * segment)
    plain = (q - q**near) / (1 - q)
    rising = q * (1 - near * q ** (near - 1) + (near - 1) * q**near) / (1 - q) ** 2
    tail = np.exp(-rate * (restart + last))
    within = (near - 1) * a - tail * ((a + restart + last) * plain + segment * rising)
    return (1 + first) * free(whole) + final + each * (far + within)


def candidates(job: Job, step: float) -> np.ndarray:
    """Every whole number of steps that may be advised: 30 min of work or less, and not the run."""
    most = max(1, int(min(LONGEST / step, job.work_seconds / step / 2)))
    if most <= MOST:
        return np.arange(1, most + 1)
    return np.unique(np.geomspace(1, most, MOST).astype(int))


def best_period(job: Job, middle: Constant, high: Constant, step: float) -> int:
    """Steps between checkpoints: the shortest time at the middle rate, of all that `high` bears.

    It bears those whose cost there is at most BEARS times the least, and of these those whose
    time is at most BEARS times the least.
    """
    steps = candidates(job, step)
    usual, worst = (expected(job, market, steps * step) for market in (middle, high))
    bears = worst.cost <= BEARS * worst.cost.min()
    bears &= worst.hours <= BEARS * worst.hours[bears].min()
    return int(steps[np.argmin(np.where(bears, usual.hours, np.inf))])
