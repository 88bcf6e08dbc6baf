"""`plan`: what every pool and slot count would take and cost, before anything is paid for."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from detalbert.errors import UserError
from reports.plan_command import Settings
from reports.prices import Price, find
from reports.reclaims import CASES, Constant, Market, Trace
from reports.simulate import Job, best_period, simulate
from reports.speed import Speed

DEFAULT_SLOTS = [1, 4, 8, 16, 32, 64]
WIDE = 8  # slots of a machine whose network is like that of the measured ones


@dataclass(frozen=True)
class Option:
    """One way to run: machines of a type, on spot or on demand, for a number of slots."""

    price: Price
    spot: bool
    slots: int
    throughput: float
    speed: str  # measured, published or modelled

    @property
    def market(self) -> str:
        return "spot" if self.spot else "on demand"

    @property
    def machines(self) -> int:
        return self.price.machines(self.slots)

    @property
    def hardware(self) -> str:
        return f"{self.machines} x {self.price.instance}"


@dataclass(frozen=True, eq=False)
class Planned:
    """An option with its checkpoint period, and a row of figures for each case."""

    option: Option
    job: Job
    step_seconds: float
    markets: Mapping[str, Market]
    cases: Mapping[str, dict[str, Any]]

    @property
    def hours(self) -> float:
        return self.cases["middle"]["hours"]

    @property
    def cost(self) -> float:
        return self.cases["middle"]["cost"]

    @property
    def steps(self) -> int:
        return max(1, round(self.job.period_seconds / self.step_seconds))


def options(
    prices: Mapping[str, Price], pool: Sequence[str] | None, slots: Sequence[int], speed: Speed
) -> list[Option]:
    """Every instance type (by default those that AWS launches), market and slot count that fit.

    Jobs over several machines that are narrower than WIDE only where `pool` names them.
    Raises UserError for a slot count that was asked for and that no instance fits.
    """
    types = [find(prices, instance) for instance in dict.fromkeys(pool or prices)]
    types = [price for price in types if pool or not price.retired]
    found = []
    for count in dict.fromkeys(slots or DEFAULT_SLOTS):
        wide = [price for price in types if pool or price.slots >= WIDE or count == price.slots]
        fitting = [price for price in wide if count % price.slots == 0]
        if slots and types and not fitting:
            max(types, key=lambda price: price.slots).machines(count)
        for price in fitting:
            rate = speed.at(count, price)
            found += [Option(price, spot, count, *rate) for spot in (True, False)]
    if not found:
        raise UserError("plan: no instance has machines for these slots; change --slots or --pool")
    return found


def markets(settings: Settings, trace: Trace | None) -> dict[str, Market]:
    """Low, middle and high: as recorded, or three times what was given."""
    if trace is not None:
        return dict.fromkeys(CASES, trace)
    wait = settings.wait_seconds
    if settings.hourly is not None and wait is None:
        wait = CASES["middle"].wait_seconds
    given = {
        k: v for k, v in (("hourly", settings.hourly), ("wait_seconds", wait)) if v is not None
    }
    return {name: dataclasses.replace(case, **given) for name, case in CASES.items()}


def figures(job: Job, market: Market) -> dict[str, Any]:
    """Means over the runs, and what 5 and 95 % of them keep within."""
    runs = simulate(job, market, job.rules.runs, job.rules.seed)
    found = runs.mean().to_dict()
    for what in ("hours", "cost"):  # nothing is interpolated: runs that never end do no harm
        for share in (5, 95):
            found[f"{what} {share} %"] = runs[what].quantile(share / 100, "nearest")
    if job.rules.deadline is not None:
        found["in time"] = (runs["hours"] <= job.rules.deadline).mean()
    return found


def plan(
    settings: Settings, work: float, unit: float, option: Option, seen: Mapping[str, Market]
) -> Planned:
    """Simulate an option; `work` windows, or tokens of which `unit` are a window."""
    step = (settings.batch or (256 if option.slots >= 16 else 48) * unit) / option.throughput
    seconds, hourly = work / option.throughput, option.price.spot_range()
    price = option.price.hourly(option.spot)
    job = Job(seconds, seconds, option.machines, price, settings)
    if option.spot:
        rates = (seen[case].alike() for case in ("middle", "high"))
        steps = settings.checkpoint_period or best_period(job, *rates, step)
        job = dataclasses.replace(job, period_seconds=min(steps * step, seconds))
    else:
        seen, hourly = dict.fromkeys(CASES, Constant(0.0)), (price,) * len(CASES)
        job = dataclasses.replace(job, rules=dataclasses.replace(settings, runs=10))
    cases = {}
    for (name, market), price in zip(seen.items(), hourly, strict=True):
        alike, figured = market.alike(), figures(dataclasses.replace(job, price=price), market)
        facts = {"case": name, "reclaims/h": alike.hourly, "wait min": alike.wait_seconds / 60}
        cases[name] = {**facts, "$/h": price, **figured}
    return Planned(option, job, step, seen, cases)


def pareto(planned: Sequence[Planned]) -> list[Planned]:
    """The options that no other one beats in both time and cost, the fastest first."""
    front: list[Planned] = []
    order = {p: (round(p.hours, 9), round(p.cost, 6), p.option.machines) for p in planned}
    for p in sorted(planned, key=order.__getitem__):
        if p.cost < min((other.cost for other in front), default=math.inf):
            front.append(p)
    return front


def recommended(planned: Sequence[Planned], deadline: float | None) -> Planned:
    """The cheapest of which 95 % of the runs meet the deadline, or else the fastest."""
    finite = [p for p in planned if math.isfinite(p.cost)]
    if not finite:
        raise UserError("plan: no option ever finishes at this interruption rate; lower it")
    safe = [p for p in finite if deadline is None or p.cases["middle"]["hours 95 %"] <= deadline]
    return min(safe, key=lambda p: p.cost) if safe else min(finite, key=lambda p: p.hours)
