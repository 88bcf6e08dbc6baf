"""`plan`: what every pool and slot count would take and cost, before anything is paid for."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from detalbert.errors import UserError
from reports.closed_form import best_period
from reports.plan_command import Settings
from reports.prices import Price, find
from reports.reclaims import CASES, Constant, Market, Trace
from reports.simulate import Job, simulate
from reports.speed import Speed

DEFAULT_SLOTS = [1, 4, 8, 16, 32, 64]
WIDE = 8  # slots of a machine whose network is like that of the measured ones
MIDDLE, HIGH = 1, 2  # of CASES


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


@dataclass(frozen=True)
class Planned:
    """An option with its checkpoint period, and the runs of each of the three cases."""

    option: Option
    job: Job
    step_seconds: float
    markets: Sequence[Market]
    outcomes: Sequence[pd.DataFrame]

    @property
    def hours(self) -> float:
        return float(self.outcomes[MIDDLE]["hours"].mean())

    @property
    def cost(self) -> float:
        return float(self.outcomes[MIDDLE]["cost"].mean())

    @property
    def steps(self) -> int:
        return max(1, round(self.job.period_seconds / self.step_seconds))

    def bound(self, what: str, share: float, case: int = MIDDLE) -> float:
        """What that share of a case's runs keeps within: hours or dollars."""
        return float(self.outcomes[case][what].quantile(share, interpolation="nearest"))


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


def markets(settings: Settings, trace: Trace | None) -> list[Market]:
    """Low, middle and high: as recorded, or three times what was given."""
    if trace is not None:
        return [trace] * len(CASES)
    found: list[Market] = []
    for case in CASES:
        wait = CASES[MIDDLE].wait_seconds if settings.hourly is not None else case.wait_seconds
        wait = wait if settings.wait_seconds is None else settings.wait_seconds
        hourly = case.hourly if settings.hourly is None else settings.hourly
        found.append(Constant(hourly, wait, settings.together))
    return found


def plan(
    settings: Settings, work: float, unit: float, option: Option, seen: Sequence[Market]
) -> Planned:
    """Simulate an option; `work` windows, or tokens of which `unit` are a window."""
    step = (settings.batch or (256 if option.slots >= 16 else 48) * unit) / option.throughput
    seconds, price = work / option.throughput, option.price.hourly(option.spot)
    job = Job(seconds, seconds, option.machines, price, option.price.on_demand, settings)
    if not option.spot:
        rules = dataclasses.replace(settings, fallback_seconds=math.inf)
        never = Constant(0.0)
        once = simulate(dataclasses.replace(job, rules=rules), never, 2, settings.seed)
        return Planned(option, job, step, [never] * len(CASES), [once] * len(CASES))
    steps = settings.checkpoint_period
    if steps is None:
        steps = best_period(job, seen[MIDDLE].alike(), seen[HIGH].alike(), step)
    job = dataclasses.replace(job, period_seconds=min(steps * step, seconds))
    found = [
        simulate(dataclasses.replace(job, price=price), market, settings.runs, settings.seed)
        for price, market in zip(option.price.spot_range(), seen, strict=True)
    ]
    return Planned(option, job, step, seen, found)


def pareto(planned: Sequence[Planned]) -> set[int]:
    """Positions of the options that no other one beats in both time and cost."""
    front, best = set(), math.inf
    keys = [(round(p.hours, 9), round(p.cost, 6), p.option.machines) for p in planned]
    for position in sorted(range(len(planned)), key=keys.__getitem__):
        if planned[position].cost < best:
            front.add(position)
            best = planned[position].cost
    return front


def recommended(planned: Sequence[Planned], deadline: float | None) -> Planned:
    """The cheapest of which 95 % of the runs meet the deadline, or else the fastest."""
    finite = [p for p in planned if math.isfinite(p.cost)]
    if not finite:
        raise UserError("plan: no option ever finishes at this interruption rate; lower it")
    safe = [p for p in finite if deadline is None or p.bound("hours", 0.95) <= deadline]
    return min(safe, key=lambda p: p.cost) if safe else min(finite, key=lambda p: p.hours)
