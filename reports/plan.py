"""`plan`: what every pool and slot count would take and cost, before anything is paid for."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from detalbert.errors import UserError
from reports.closed_form import best_period
from reports.plan_command import Settings
from reports.prices import Price, find
from reports.reclaims import CASES, Constant, Market, Trace
from reports.simulate import Job, Outcome, simulate
from reports.speed import Speed

DEFAULT_SLOTS = [1, 4, 8, 16, 32, 64]
WIDE = 8  # slots of a machine whose network is like that of the measured ones
LOW, MIDDLE, HIGH = 0, 1, 2


@dataclass(frozen=True)
class Option:
    """One way to run: machines of a type, on spot or on demand, for a number of slots."""

    price: Price
    spot: bool
    slots: int
    machines: int
    throughput: float
    speed: str  # measured, published or modelled

    @property
    def market(self) -> str:
        return "spot" if self.spot else "on demand"

    @property
    def hardware(self) -> str:
        return f"{self.machines} x {self.price.instance}"


@dataclass(frozen=True)
class Planned:
    """An option with its checkpoint period, and what became of it in each of the three cases."""

    option: Option
    jobs: Sequence[Job]
    markets: Sequence[Market]
    outcomes: Sequence[Outcome]
    step_seconds: float

    @property
    def hours(self) -> float:
        return float(self.outcomes[MIDDLE].hours.mean())

    @property
    def cost(self) -> float:
        return float(self.outcomes[MIDDLE].cost.mean())

    @property
    def period_steps(self) -> int:
        return max(1, round(self.jobs[MIDDLE].period_seconds / self.step_seconds))

    def late(self, case: int = MIDDLE) -> float:
        """Hours that 95 % of the runs keep within."""
        return percentile(self.outcomes[case].hours, 95)


def percentile(sample: np.ndarray, percent: float) -> float:
    """A value of the sample: nothing is interpolated, so runs that never end do no harm."""
    return float(np.percentile(sample, percent, method="nearest"))


def options(
    prices: Mapping[str, Price],
    instances: Sequence[str],
    slots: Sequence[int],
    speed: Speed,
    named: bool,
) -> list[Option]:
    """Every instance type, market and slot count that fit together.

    Jobs over several machines that are narrower than WIDE only where the instances were `named`.
    Raises UserError for a slot count that was asked for and that no instance fits.
    """
    found = []
    types = [find(prices, instance) for instance in dict.fromkeys(instances)]
    for count in dict.fromkeys(slots or DEFAULT_SLOTS):
        fitting = [
            price
            for price in types
            if count % price.slots == 0 and (named or price.slots >= WIDE or count == price.slots)
        ]
        if slots and not fitting:
            max(types, key=lambda price: price.slots).machines(count)
        for price in fitting:
            rate = speed.at(count, price)
            for spot in (True, False):
                found.append(Option(price, spot, count, price.machines(count), *rate))
    if not found:
        raise UserError("plan: no instance has machines for these slots; change --slots or --pool")
    return found


def repriced(choices: Sequence[Option], prices: Mapping[str, Price]) -> list[Option]:
    return [dataclasses.replace(o, price=prices[o.price.instance]) for o in choices]


def markets(settings: Settings, trace: Trace | None) -> list[Market]:
    """Low, middle and high: as recorded, or three times what was given."""
    if trace is not None:
        return [trace] * len(CASES)
    found: list[Market] = []
    for case in CASES:
        case = CASES[MIDDLE] if settings.hourly is not None else case
        hourly = case.hourly if settings.hourly is None else settings.hourly
        wait = case.wait_seconds if settings.wait_seconds is None else settings.wait_seconds
        found.append(Constant(hourly, wait, settings.together))
    return found


def plan(
    settings: Settings, work: float, unit: float, choices: Sequence[Option], trace: Trace | None
) -> list[Planned]:
    """Simulate each option; `work` windows, or tokens of which `unit` are a window."""
    seen = markets(settings, trace)
    return [_planned(settings, work, unit, option, seen) for option in choices]


def _planned(
    settings: Settings, work: float, unit: float, option: Option, seen: Sequence[Market]
) -> Planned:
    batch = settings.batch or (256 if option.slots >= 16 else 48) * unit
    step, seconds = batch / option.throughput, work / option.throughput
    spot = option.spot
    job = Job(
        work_seconds=seconds,
        period_seconds=seconds,
        machines=option.machines,
        price=option.price.hourly(spot),
        on_demand_price=option.price.on_demand,
        checkpoint_seconds=settings.checkpoint_seconds,
        restart_seconds=settings.restart_seconds,
        boot_seconds=settings.boot_seconds,
        image_seconds=settings.image_seconds,
        fallback_seconds=settings.fallback_seconds if spot else math.inf,
        notice_read=settings.notice_read,
    )
    if not spot:
        never = Constant(0.0)
        once = simulate(job, never, 2, settings.seed)
        return Planned(option, [job] * 3, [never] * 3, [once] * 3, step)
    steps = settings.checkpoint_period
    if steps is None:
        steps = best_period(job, seen[MIDDLE].alike(), seen[HIGH].alike(), step)
    job = dataclasses.replace(job, period_seconds=min(steps * step, seconds))
    jobs = [dataclasses.replace(job, price=price) for price in option.price.spot_range()]
    runs = zip(jobs, seen, strict=True)
    found = [simulate(each, market, settings.runs, settings.seed) for each, market in runs]
    return Planned(option, jobs, seen, found, step)


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
    """The cheapest whose 95th percentile meets the deadline, or else the fastest."""
    finite = [p for p in planned if math.isfinite(p.cost)]
    if not finite:
        raise UserError("plan: no option ever finishes at this interruption rate; lower it")
    safe = [p for p in finite if deadline is None or p.late() <= deadline]
    return min(safe, key=lambda p: p.cost) if safe else min(finite, key=lambda p: p.hours)
