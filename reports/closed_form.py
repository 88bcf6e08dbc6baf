"""What the simulation is held against, and where the search for a checkpoint period starts.

Sources: Young 1974, "A first order approximation to the optimum checkpoint interval"; Daly 2006,
"A higher order estimate of the optimum checkpoint interval for restart dumps"; Bougeret et al.
2011, "Checkpointing strategies for parallel jobs", for the downtime without failures.
"""

import dataclasses
import math
from typing import NamedTuple

from reports.simulate import NOTICE_SECONDS, Job


class Expected(NamedTuple):
    """Expectations over all runs; infinite where a job practically never finishes."""

    hours: float
    cost: float
    reclaims: float


def expected(job: Job, hazard: float) -> Expected:
    """Time and cost at a constant rate, `hazard` reclaims per machine-hour.

    With rate L = hazard x machines, segments of s seconds training and c seconds checkpoint,
    restarts of R seconds that can be interrupted and downtimes of D seconds that cannot:

        without notice   E[segment] = (1/L + D) e^(LR) (e^(L(s+c)) - 1)
        with notice      E[work W]  = W e^(LR) (1 + LD), nothing being lost

    and in both a first start of (1/L + D)(e^(LR) - 1). Only for `notice_read` of 0 or 1, without
    fallback, and with waits short of `idle_seconds`; the cost only without waits.
    """
    rate = hazard * job.machines / 3600
    notice = job.notice_read == 1 and job.checkpoint_seconds <= NOTICE_SECONDS
    try:
        running = _running_seconds(job, rate, notice)
    except OverflowError:
        return Expected(math.inf, math.inf, math.inf)
    count = rate * running
    warned = NOTICE_SECONDS if job.notice_read == 1 else 0.0
    down = job.detection_seconds + job.wait_seconds + job.start_seconds
    seconds = job.wait_seconds + job.start_seconds + running + count * (warned + down)
    idle = (job.machines - 1) * min(down, job.idle_seconds)
    booting = (job.machines if down > job.idle_seconds else 1) * job.start_seconds
    paid = job.machines * (job.start_seconds + running)
    paid += count * (job.machines * warned + idle + booting)
    return Expected(seconds / 3600, paid * job.price / 3600, count)


def _running_seconds(job: Job, rate: float, notice: bool) -> float:
    """Time on running machines: restarts, training, checkpoints, and what is done again."""
    if rate == 0:
        return job.restart_seconds + job.total_seconds
    start = math.expm1(rate * job.restart_seconds) / rate
    again = math.exp(rate * job.restart_seconds)
    if notice:
        return start + job.total_seconds * again
    segment = job.period_seconds + job.checkpoint_seconds
    full = job.segments - 1
    last = job.total_seconds - full * segment
    return start + again * (full * math.expm1(rate * segment) + math.expm1(rate * last)) / rate


def young_period(checkpoint_seconds: float, hazard: float, machines: int) -> float:
    """sqrt(2 c M): seconds of training between checkpoints; M is the mean time between reclaims."""
    if hazard == 0:
        return math.inf
    return math.sqrt(2 * checkpoint_seconds * 3600 / (hazard * machines))


def daly_period(checkpoint_seconds: float, hazard: float, machines: int) -> float:
    """Daly's higher-order estimate of the same; M itself where checkpoints cost more than 2 M."""
    if hazard == 0:
        return math.inf
    mean = 3600 / (hazard * machines)
    if checkpoint_seconds >= 2 * mean:
        return mean
    ratio = math.sqrt(checkpoint_seconds / (2 * mean))
    first = math.sqrt(2 * checkpoint_seconds * mean)
    return first * (1 + ratio / 3 + ratio**2 / 9) - checkpoint_seconds


def break_even_hazard(job: Job, on_demand_cost: float) -> float:
    """Reclaims per machine-hour above which `on_demand_cost` is less than the job's on spot.

    The checkpoint period follows the rate (Daly); infinite when spot wins at any rate that is
    below one reclaim per machine and minute.
    """

    def dearer(hazard: float) -> bool:
        period = daly_period(job.checkpoint_seconds, hazard, job.machines)
        period = min(max(period, 1.0), job.work_seconds)
        here = dataclasses.replace(job, period_seconds=period, notice_read=0.0)
        return expected(here, hazard).cost > on_demand_cost

    low, high = 0.0, 60.0
    if dearer(low):
        return 0.0
    if not dearer(high):
        return math.inf
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (low, middle) if dearer(middle) else (middle, high)
    return low
