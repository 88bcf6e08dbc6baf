"""Time and cost of an option in three cases of speed, market and price.

The three go together: the low case has the fast GPU, the quiet market and the low price, the high
case the opposite of each. So a range is wider than one of independent figures would be, but no
distribution of them has to be assumed.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from cluster.configs.search import Load
from cluster.estimates.estimate import Estimate
from cluster.estimates.times import periodic_checkpoints, time_parts
from cluster.facts import spot

SURE = 95  # per cent of the runs that meet a deadline or a budget


class Case(NamedTuple):
    """A case and its figures: means over the simulated runs, and percentiles of `hours` and `cost`.

    They are of all trials of a search.
    """

    name: str  # low, middle or high
    market: spot.Market
    hourly: float  # dollars an hour of a machine
    figures: dict[str, float]

    def range(self, figure: str) -> tuple[float, float, float]:
        """Return `hours` or `cost` of nine of ten runs: the least, the mean and the greatest."""
        return (
            self.figures[f"{figure} 5 %"],
            self.figures[figure],
            self.figures[f"{figure} {SURE} %"],
        )


def simulate_cases(
    estimated: Estimate, hourly: Sequence[float], machines: int, mean: Load, longest: Load
) -> list[Case]:
    """Return the three cases of a trial, or of a search of such trials, on its pool.

    Args:
        hourly: low, usual and high dollars of a machine; infinite: it has no price.
        machines: of all trials that run at a time.
        mean: trials that follow each other on the machines of one, over all machines.
        longest: those of the machines that end last.

    Raises:
        UserError: if the number of steps is not known.
    """
    on_spot = estimated.pool.spot
    period = choose_period(estimated)
    rate = estimated.rate
    speed_by_case = (rate.high, rate.tokens, rate.low)
    cases = []
    for name, dollars, speed in zip(spot.CASES, hourly, speed_by_case, strict=True):
        market = spot.CASES[name] if on_spot else spot.ON_DEMAND
        job = _job(estimated, longest, speed=speed, period=period)
        # On demand nothing is left to chance: one run stands for all.
        runs = spot.simulate(job, market, runs=spot.RUNS if on_spot else 1)

        # Machines that end before the last ones are paid for less.
        share = _job(estimated, mean, speed=speed, period=period).up_seconds / job.up_seconds
        runs["cost"] = runs["paid h"] * machines * dollars * share
        cases.append(Case(name, market=market, hourly=dollars, figures=_figures(runs)))
    return cases


def _job(estimated: Estimate, load: Load, speed: float, period: int | None) -> spot.SpotJob:
    """Return the trials of a load, which a machine boots for once, as one job.

    Args:
        speed: of a GPU, tokens a second.
        period: steps from a checkpoint to the next; None: the whole trial.
    """
    length = estimated.job.length
    parts = {}
    for part in time_parts(estimated):
        parts[part.name] = part.seconds
    assert length is not None  # `time_parts` has raised UserError
    # Those of the periods are simulated.
    parts["checkpoints"] -= periodic_checkpoints(estimated, length)

    # Each trial starts; the first start is that of the job, which a reclaim repeats.
    restart_seconds = parts.pop("start of the container") + parts.pop("compilation", 0.0)
    start_seconds = restart_seconds + parts.pop("tokenizing", 0.0)
    starts_seconds = load.starts * start_seconds - restart_seconds

    # A GPU's speed is not sure; the rest is as it is.
    gpu_seconds = parts.pop("training") + parts.pop("validation", 0.0)
    trial_seconds = gpu_seconds * estimated.rate.tokens / speed + sum(parts.values())

    # Checkpoints divide the work; a trial that is followed by another one ends with its own.
    checkpoint_seconds = estimated.checkpoint.seconds
    trial_segments = max(1.0, length.steps / (period or length.steps))
    trial_seconds += math.ceil(trial_segments) * checkpoint_seconds
    if load.starts > 1:
        trial_segments = math.ceil(trial_segments)
    segments = load.work * trial_segments
    # The simulation adds a checkpoint to each segment: they are no work of the job's.
    saving_seconds = spot.count_segments(segments) * checkpoint_seconds
    work_seconds = starts_seconds + load.work * trial_seconds - saving_seconds

    # A notice is of use only if the job can save a checkpoint and leave within it.
    leaves = estimated.pool.spot and estimated.seconds_after_notice <= spot.NOTICE_SECONDS
    return spot.SpotJob(
        work_seconds=work_seconds,
        period_seconds=work_seconds / segments,
        checkpoint_seconds=checkpoint_seconds,
        restart_seconds=restart_seconds,
        notice_read=float(leaves),
    )


def choose_period(estimated: Estimate) -> int | None:
    """Return the steps between checkpoints: the config's, or on spot the best if that is longer
    than a reclaim may cost. None: not known.

    Raises:
        UserError: if the number of steps is not known.
    """
    step = estimated.step.seconds
    period = estimated.hparams.checkpoint_period
    if not estimated.pool.spot:
        length = estimated.job.length
        return length.checkpoint if length else period
    # The checker counts windows of full length.
    longest = spot.MAX_LOST_SECONDS * estimated.demand.window / estimated.hparams.max_seq_length
    if period and period * step <= longest:
        return period
    one_trial = Load(starts=1, work=1)
    job = _job(estimated, one_trial, speed=estimated.rate.tokens, period=None)
    best_seconds = spot.best_period(job, market=spot.CASES["middle"], longest=longest)
    return max(1, int(best_seconds / step))


def _figures(runs: dict[str, np.ndarray]) -> dict[str, float]:
    """Return means and percentiles; these are of single runs, so that one without an end does no
    harm.
    """
    figures = {name: float(values.mean()) for name, values in runs.items()}
    for name in ("hours", "cost"):
        ordered = np.sort(runs[name])  # [runs]
        last = len(ordered) - 1
        for percent in (5, SURE):
            # The nearest rank: interpolated with a run without an end, all would be infinite.
            rank = round(percent / 100 * last)
            figures[f"{name} {percent} %"] = float(ordered[rank])
    return figures
