"""Options for a run: machines, slots and market, with time, cost, and why one cannot run."""

import copy
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from cluster.configs.fleet import check_fleet, slots_of
from cluster.configs.masterconf import Cluster, Pool
from cluster.estimates.estimate import Estimate, estimate
from cluster.estimates.job import DataSize, Job, parse_jobs
from cluster.estimates.jobs import check_job
from cluster.estimates.layouts import layout_keys, ranked
from cluster.estimates.speeds import Rate
from cluster.facts import spot
from cluster.facts.machines import ROOT
from cluster.facts.prices import Price, retired
from detalbert.errors import UserError
from detalbert.settings.schema import Finding
from lm.hparams import LmHParams

COUNTS = (1, 4, 8, 16, 32, 64)  # slots that are tried beside the config's own
WIDE = 8  # slots of a machine whose network is like that of the measured ones
RUNS = 4000  # that are simulated for an option and case
SURE = 95  # per cent of the runs that meet a deadline or a budget


class Asked(NamedTuple):
    """Prices and limits that the options are for."""

    prices: Mapping[str, Price]
    root: Path = ROOT  # parent folder of relative model folders
    limits: Mapping[str, float] = {}  # of `hours` and `cost`


@dataclass(frozen=True, eq=False)
class Option:
    """A pool's machines for a number of slots; `why_not` says why the run cannot take it."""

    pool: Pool
    price: Price
    slots: int
    found: Estimate | None = None
    cases: Sequence[dict[str, Any]] = ()  # low, middle, high
    period: int | None = None
    keys: Mapping[str, Any] = field(default_factory=dict)  # hyperparameters to write
    why_not: str = ""

    @property
    def rate(self) -> Rate | None:
        return None if self.found is None else self.found.rate

    @property
    def machines(self) -> int:
        return self.price.machines(self.slots)

    @property
    def name(self) -> str:
        market = "spot" if self.pool.spot else "on demand"
        return f"{self.machines} x {self.price.instance}, {market}"

    def figures(self, what: str) -> tuple[float, float, float]:
        """Return low, mean and high of `hours` or `cost`; infinite where it does not finish."""
        low = min(case[f"{what} 5 %"] for case in self.cases)
        return low, self.mean(what), max(case[f"{what} 95 %"] for case in self.cases)

    def mean(self, what: str) -> float:
        """Return the mean `hours` or `cost` of the middle case; infinite without an estimate."""
        return float(self.cases[1][what]) if self.cases else math.inf

    def sure(self, what: str) -> float:
        """Return what SURE per cent of the runs of the middle case keep below."""
        return float(self.cases[1][f"{what} {SURE} %"])


def plan_options(
    config: dict[str, Any], cluster: Cluster, asked: Asked, size: DataSize | None = None
) -> list[Option]:
    """Return the options of a config in the pools of a cluster, those that can run and others.

    Raises UserError if the config is invalid, its model's sizes are not known or no pool has one
    of the priced machines with a known GPU.
    """
    found = []
    for offer in _offers(cluster, asked, max(1, slots_of(config))):
        changed = copy.deepcopy(config)
        resources = {"slots_per_trial": offer.slots, "resource_pool": offer.pool.name}
        changed["resources"] = {**(changed.get("resources") or {}), **resources}
        if option := plan_option(changed, cluster, asked, size):
            found.append(option)
    if not found:
        raise UserError("resources.resource_pool: no pool has priced machines with a GPU")
    return found


def _offers(cluster: Cluster, asked: Asked, own: int) -> Iterator[Option]:
    """Yield the priced pools, with each number of COUNTS that fills their machines and `own`."""
    for pool in cluster.pools.values():
        if (price := asked.prices.get(pool.instance)) is not None:
            width, most = price.slots, (pool.max_agents or 64) * price.slots
            fits = [n for n in COUNTS if n % width == 0 and (width >= WIDE or n == width)]
            for slots in sorted({own, *(n for n in fits if n <= most)}):
                yield Option(pool, price, slots)


def plan_option(
    config: dict[str, Any], cluster: Cluster, asked: Asked, size: DataSize | None = None
) -> Option | None:
    """Return the option that is a config on its pool; None if its machines have no price or GPU.

    Raises UserError if the config is invalid.
    """
    pool = cluster.pool_of(config)
    price = pool and asked.prices.get(pool.instance)
    if pool is None or price is None or pool.gpu is None:
        return None
    jobs = list(parse_jobs(config, pool, asked.root, size))
    option = Option(pool, price, jobs[0].slots)
    why = retired(price.instance, {price.instance: price})
    if why := why or first_fault(check_fleet(config, cluster)):
        return replace(option, why_not=why)
    try:
        found, keys = max(map(_fit, jobs), key=lambda each: each[0].needed)
        option = _simulate_estimate(replace(option, found=found), found, asked)
    except UserError as error:  # of its memory or layout, or a trace with fewer machines
        return replace(option, why_not=str(error))
    if pool.spot and not found.hparams.spot_notice:
        keys["spot_notice"] = True
    if pool.spot and option.period != found.hparams.checkpoint_period:
        keys["checkpoint_period"] = option.period
    config["hyperparameters"] = {**config["hyperparameters"], **keys}
    return replace(option, keys=keys, why_not=first_fault(check_job(config, pool, asked.root)))


def first_fault(findings: Iterable[Finding]) -> str:
    """Return key and problem of the first finding that is no warning; empty if there is none."""
    return next((f"{each.key}: {each.problem}" for each in findings if not each.warning), "")


def _fit(job: Job) -> tuple[Estimate, dict[str, Any]]:
    """Return the estimate of a job and the keys that make it fit the pool, if any must change."""
    found = estimate(job)
    if found is None:
        problem = "its sizes are not known, and nothing is downloaded; give a folder with its "
        raise UserError(f"hyperparameters.model: {problem}config.json, or model_config")
    if isinstance(job.hparams, LmHParams):
        if found.tokens > found.most and (others := ranked(found)):
            return others[0], layout_keys(others[0])
        return found, {}
    forward = found.most // 128 * 128
    if job.hparams.max_seq_length <= forward < found.tokens:
        keys = {"max_tokens_per_forward": forward}
        return found.changed(**keys), keys
    return found, {}


def _simulate_estimate(option: Option, found: Estimate, asked: Asked) -> Option:
    """Return the option with its cases: seconds of training at the high, middle and low speed."""
    named = {part.name: part.seconds for part in found.parts()}
    length = found.job.length
    assert length is not None  # `parts` has raised UserError
    # Those of the periods are simulated; the others come after validations.
    periods = math.ceil(length.steps / length.checkpoint) * found.checkpoint
    named["checkpoints"] -= periods
    first = named.pop("start of the container") + named.pop("compilation", 0.0)
    moving = sum(named.pop(name, 0.0) for name in ("training", "validation"))
    rate, rest = found.rate, sum(named.values())
    seconds = [moving * rate.tokens / at + rest for at in (rate.high, rate.tokens, rate.low)]
    read = float(option.pool.spot and sum(found.leaving()) <= spot.NOTICE_SECONDS)
    job = spot.SpotJob(seconds[1], seconds[1], option.machines, 0.0, found.checkpoint, first, read)
    # The checker counts windows of full length.
    longest = spot.LONGEST * found.window / found.hparams.max_seq_length
    period = found.hparams.checkpoint_period
    if not option.pool.spot:
        period = length.checkpoint
    elif period and period * found.step > longest:
        period = None
    return simulate_option(option, job, seconds, asked, found.step, period, longest)


def simulate_option(
    option: Option, job: spot.SpotJob, seconds: Sequence[float], asked: Asked,
    step: float = 1.0, period: int | None = None, longest: float = spot.LONGEST,
) -> Option:  # fmt: skip
    """Return the option with its three cases, and the steps of its period.

    Args:
        seconds: of training, in the three cases.
        step: seconds.
        period: steps between checkpoints; None: the best one on spot, else the whole run.
        longest: seconds of work that a period may put at stake.
    """
    price, on_spot, work = option.price, option.pool.spot, job.work_seconds
    prices = price.spot_range() if on_spot else (price.on_demand,) * 3
    markets = spot.CASES if on_spot else dict.fromkeys(spot.CASES, spot.Constant(0.0))
    if period is None and on_spot:
        best = spot.best_period(job, markets["middle"], longest)
        period = max(1, int(best / step))
    share, cases = min(period * step, work) if period else work, []
    for name, whole, dollars in zip(spot.CASES, seconds, prices, strict=True):
        one = replace(job, work_seconds=whole, period_seconds=share * whole / work, price=dollars)
        alike = markets[name]
        runs = spot.simulate(one, markets[name], RUNS if on_spot else 1)
        case = {"case": name, "reclaims/h": alike.hourly, "wait min": alike.wait_seconds / 60}
        case |= {"$/h": dollars, **runs.mean().to_dict()}
        for what in ("hours", "cost"):  # nothing is interpolated: runs that never end do no harm
            for percent in (5, SURE):
                case[f"{what} {percent} %"] = float(runs[what].quantile(percent / 100, "nearest"))
        cases.append(case)
    return replace(option, cases=cases, period=period)


def finishing(options: Sequence[Option]) -> list[Option]:
    """Return the options that can run and end, the cheapest first."""
    fine = (o for o in options if not o.why_not and math.isfinite(o.mean("cost")))
    return sorted(fine, key=lambda option: option.mean("cost"))


def recommend(options: Sequence[Option], asked: Asked) -> tuple[Option, str, bool]:
    """Return the option to take, why, and whether it keeps to the limits.

    It is the cheapest of which SURE per cent of the runs meet deadline and budget; if none does,
    the fastest with a deadline, else the cheapest. Raises UserError if none can run or finishes.
    """
    fine = finishing(options)
    if not fine:
        why = next((option.why_not for option in options if option.why_not), "none ever finishes")
        raise UserError(f"no option can run: {why}")
    for option in fine:
        if all(option.sure(what) <= most for what, most in asked.limits.items()):
            words = {"hours": "the deadline", "cost": "the budget"}
            given = " and ".join(words[what] for what in asked.limits)
            many = f"the cheapest of {len(fine)} options" if fine[1:] else "the one that can run"
            return option, many + f" of which {SURE} % of runs meet {given}" * bool(given), True
    none = "no option meets what was asked, and this is the"
    if "hours" in asked.limits:
        best = min(fine, key=lambda option: option.mean("hours"))
        return best, f"MISSES THE DEADLINE; {none} fastest", False
    return fine[0], f"IS OVER THE BUDGET; {none} cheapest", False


def front(options: Sequence[Option]) -> Iterator[Option]:
    """Yield the options that none beats in both time and cost, the fastest first."""
    cheapest = math.inf
    for option in sorted(finishing(options), key=lambda each: each.mean("hours")):
        if option.mean("cost") < cheapest:
            cheapest = option.mean("cost")
            yield option
