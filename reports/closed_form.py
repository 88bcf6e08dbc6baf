"""The checkpoint period, from an exact expectation at a constant rate.

Bougeret et al. 2011, "Checkpointing strategies for parallel jobs", with downtime that cannot fail.
"""

import numpy as np

from reports.reclaims import Constant
from reports.simulate import Job

LONGEST = 1800.0  # seconds of work that an advised period may put at stake
BEARS = 1.10  # at the high rate an advised period takes at most so much more than the best
MOST = 100_000  # periods that are looked at


def running_seconds(job: Job, market: Constant, periods: np.ndarray) -> tuple[np.ndarray, ...]:
    """Expected seconds on running machines, and reclaims, for each period in seconds.

    With L reclaims a second, segments of s seconds (training and a checkpoint) and restarts of R
    seconds that can be interrupted, a segment has e^(LR) (e^(Ls) - 1) reclaims, the first restart
    e^(LR) - 1 more, and the running time is all of them over L. Without notices.
    """
    rate = max(market.rate(job.machines), 1e-12)
    count = np.maximum(np.ceil(job.work_seconds / periods - 1e-9), 1)
    last = job.work_seconds - (count - 1) * periods + job.rules.checkpoint_seconds
    with np.errstate(over="ignore", invalid="ignore"):
        full = (count - 1) * np.expm1(rate * (periods + job.rules.checkpoint_seconds))
        again = np.exp(rate * job.rules.restart_seconds)
        reclaims = again - 1 + again * (full + np.expm1(rate * last))
    reclaims = np.where(np.isnan(reclaims), np.inf, reclaims)
    return reclaims / rate, reclaims


def candidates(job: Job, step: float) -> np.ndarray:
    """Every whole number of steps that may be advised: 30 min of work or less, and not the run."""
    most = max(1, int(min(LONGEST, job.work_seconds / 2) / step))
    if most <= MOST:
        return np.arange(1, most + 1)
    return np.unique(np.geomspace(1, most, MOST).astype(int))


def best_period(job: Job, middle: Constant, high: Constant, step: float) -> int:
    """Steps between checkpoints: the least machine time at the middle rate, of all that the high
    rate bears (at most BEARS times the least there)."""
    steps = candidates(job, step)
    usual, worst = (
        seconds + reclaims * job.start_seconds
        for seconds, reclaims in (running_seconds(job, m, steps * step) for m in (middle, high))
    )
    return int(steps[np.argmin(np.where(worst <= BEARS * worst.min(), usual, np.inf))])
