"""Time and cost of an option in three cases of speed, market and price.

The three go together: the low case has the fast GPU, the quiet market and the low price, the high
case the opposite of each. So a range is wider than one of independent figures would be, but no
distribution of them has to be assumed.
"""

import dataclasses
from typing import NamedTuple

import numpy as np

from cluster.estimates.estimate import Estimate
from cluster.estimates.times import periodic_checkpoints, time_parts
from cluster.facts import spot
from cluster.facts.prices import Price

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
    estimated: Estimate, price: Price | None, machines: int, work: float, rounds: float
) -> list[Case]:
    """Return the three cases of a trial on its pool.

    Args:
        price: of a machine; None: it costs nothing.
        machines: of a trial.
        work: of the whole search, in trials.
        rounds: how many times as long as a trial the search takes.

    Raises:
        UserError: if the number of steps is not known.
    """
    on_spot = estimated.pool.spot
    job, seconds_by_case = _job(estimated)
    hourly_by_case = price.hourly_range(on_spot) if price is not None else (0.0, 0.0, 0.0)

    # Seconds of work between two checkpoints: validations and the rest are spread over the steps.
    period_seconds = job.work_seconds
    period = choose_period(estimated)
    length = estimated.job.length
    if period is not None and length is not None and period < length.steps:
        period_seconds = job.work_seconds * period / length.steps

    cases = []
    for number, name in enumerate(spot.CASES):
        seconds = seconds_by_case[number]
        hourly = hourly_by_case[number]
        market = spot.CASES[name] if on_spot else spot.ON_DEMAND
        trial = dataclasses.replace(
            job,
            work_seconds=seconds,
            period_seconds=period_seconds * seconds / job.work_seconds,
        )
        # On demand nothing is left to chance: one run stands for all.
        runs = spot.simulate(trial, market, runs=spot.RUNS if on_spot else 1)

        # From one trial to the search: all of its work is paid, its rounds follow each other.
        runs["cost"] = runs["paid h"] * machines * hourly * work
        runs["hours"] = runs["hours"] * rounds
        cases.append(Case(name, market=market, hourly=hourly, figures=_figures(runs)))
    return cases


def _job(estimated: Estimate) -> tuple[spot.SpotJob, list[float]]:
    """Return the trial at the middle speed, and the seconds of its work in the three cases."""
    length = estimated.job.length
    parts = {}
    for part in time_parts(estimated):
        parts[part.name] = part.seconds
    assert length is not None  # `time_parts` has raised UserError
    # Those of the periods are simulated.
    parts["checkpoints"] -= periodic_checkpoints(estimated, length)
    restart_seconds = parts.pop("start of the container") + parts.pop("compilation", 0.0)

    # A GPU's speed is not sure; the rest is as it is.
    gpu_seconds = parts.pop("training") + parts.pop("validation", 0.0)
    other_seconds = sum(parts.values())
    rate = estimated.rate
    seconds_by_case = []
    for speed in (rate.high, rate.tokens, rate.low):
        seconds_by_case.append(gpu_seconds * rate.tokens / speed + other_seconds)

    # A notice is of use only if the job can save a checkpoint and leave within it.
    leaves = estimated.pool.spot and estimated.seconds_after_notice <= spot.NOTICE_SECONDS
    job = spot.SpotJob(
        work_seconds=seconds_by_case[1],
        period_seconds=seconds_by_case[1],
        checkpoint_seconds=estimated.checkpoint.seconds,
        restart_seconds=restart_seconds,
        notice_read=float(leaves),
    )
    return job, seconds_by_case


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
    job, _ = _job(estimated)
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
