"""`plan`: what every pool and slot count would take and cost, before anything is paid for."""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from detalbert.errors import UserError
from reports.closed_form import Expected, break_even_hazard, daly_period, expected
from reports.prices import Price, find
from reports.reclaims import Constant, Reclaims
from reports.simulate import Job, Outcome, simulate
from reports.speed import Speed

DEFAULT_SLOTS = [1, 4, 8, 16, 32, 64]
WIDE = 8  # slots of a machine whose network is like that of the measured ones
SURE = 2.5758  # standard errors of a 99 % interval


@dataclass(frozen=True)
class Settings:
    """What is planned for. Seconds, unless a name says otherwise; see `simulate.Job`."""

    windows: float
    runs: int = 10_000
    seed: int = 0
    batch: int | None = None  # windows a step; by default 48, and 256 from 16 slots on
    deadline_hours: float | None = None
    checkpoint_seconds: float = 25.0
    restart_seconds: float = 60.0
    boot_seconds: float = 180.0
    image_seconds: float = 120.0
    wait_seconds: float = 120.0
    fallback_seconds: float = math.inf
    notice_read: float = 0.0
    period_steps: int | None = None
    hourly: float | None = None  # reclaims per machine-hour, instead of the price file's band
    trace: Reclaims | None = None

    def reclaims(self, price: Price) -> Reclaims:
        if self.trace is not None:
            return self.trace
        return Constant(0.236 if self.hourly is None else self.hourly)


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


@dataclass(frozen=True)
class Planned:
    """An option with its checkpoint period and what the simulation found."""

    option: Option
    job: Job
    step_seconds: float
    outcome: Outcome
    closed: Expected | None
    break_even: float | None  # reclaims per machine-hour; None on demand

    @property
    def hours(self) -> float:
        return float(self.outcome.hours.mean())

    @property
    def cost(self) -> float:
        return float(self.outcome.cost.mean())

    @property
    def period_steps(self) -> int:
        return max(1, round(self.job.period_seconds / self.step_seconds))

    def agrees(self) -> bool | None:
        """Whether the closed form is in the simulation's 99 % interval; None: there is none."""
        finite = np.isfinite(self.outcome.hours).all()
        if self.closed is None or not math.isfinite(self.closed.hours) or not finite:
            return None
        return within(self.outcome.hours, self.closed.hours)


def within(sample: np.ndarray, value: float) -> bool:
    """Whether `value` is in the 99 % interval of the sample's mean."""
    error = SURE * float(sample.std(ddof=1)) / math.sqrt(sample.size)
    return abs(float(sample.mean()) - value) <= error + 1e-9 * max(abs(value), 1.0)


def percentile(sample: np.ndarray, percent: float) -> float:
    """A value of the sample: nothing is interpolated, so runs that never end do no harm."""
    return float(np.percentile(sample, percent, method="nearest"))


def options(
    prices: Mapping[str, Price],
    instances: Sequence[str],
    slots: Sequence[int] | None,
    speed: Speed,
    named: bool,
) -> Iterator[Option]:
    """Every instance type, market and slot count that fit together.

    Jobs over several machines that are narrower than WIDE only where the instances were `named`.
    Raises UserError for a slot count that was asked for and that no instance fits.
    """
    for count in slots or DEFAULT_SLOTS:
        fitting = [
            price
            for price in (find(prices, instance) for instance in instances)
            if count > 0
            and count % price.slots == 0
            and (named or price.slots >= WIDE or count == price.slots)
        ]
        if slots is not None and not fitting:
            max((prices[instance] for instance in instances), key=lambda p: p.slots).machines(count)
        for price in fitting:
            throughput, kind = speed.at(count, price.instance)
            for spot in (True, False):
                yield Option(price, spot, count, price.machines(count), throughput, kind)


def plan(settings: Settings, choices: Sequence[Option]) -> list[Planned]:
    """Simulate each option. Raises UserError when none is left to look at."""
    if not choices:
        raise UserError("plan: no instance has machines for these slots; change --slots or --pool")
    on_demand = {(o.price.instance, o.slots): _job(settings, o) for o in choices if not o.spot}
    return [_planned(settings, option, on_demand) for option in choices]


def _planned(
    settings: Settings, option: Option, on_demand: Mapping[tuple[str, int], Job]
) -> Planned:
    job = _job(settings, option)
    reclaims = settings.reclaims(option.price) if option.spot else Constant(0.0)
    step = (settings.batch or (256 if option.slots >= 16 else 48)) / option.throughput
    if settings.period_steps is not None:
        period = min(settings.period_steps * step, job.work_seconds)
    else:
        period = best_period(job, reclaims, step, settings.seed)
    job = dataclasses.replace(job, period_seconds=period)
    plain = job.fallback_seconds == math.inf and job.notice_read in (0, 1)
    closed = expected(job, reclaims.hazard) if isinstance(reclaims, Constant) and plain else None
    other = on_demand.get((option.price.instance, option.slots))
    comparable = option.spot and other is not None
    break_even = break_even_hazard(job, expected(other, 0.0).cost) if comparable else None
    outcome = simulate(job, reclaims, settings.runs, settings.seed)
    return Planned(option, job, step, outcome, closed, break_even)


def _job(settings: Settings, option: Option) -> Job:
    work = settings.windows / option.throughput
    return Job(
        work_seconds=work,
        period_seconds=work,
        checkpoint_seconds=settings.checkpoint_seconds,
        machines=option.machines,
        price=option.price.hourly(option.spot),
        on_demand_price=option.price.on_demand,
        restart_seconds=settings.restart_seconds,
        boot_seconds=settings.boot_seconds,
        image_seconds=settings.image_seconds,
        wait_seconds=settings.wait_seconds if option.spot else 0.0,
        fallback_seconds=settings.fallback_seconds if option.spot else math.inf,
        notice_read=settings.notice_read,
    )


def candidates(job: Job, hazard: float, step: float) -> list[float]:
    """Periods worth a look: whole steps around Daly's estimate, and one for the whole work."""
    guess = daly_period(job.checkpoint_seconds, hazard, job.machines)
    if not math.isfinite(guess):
        return [job.work_seconds]
    factors = [0.25, 0.35, 0.5, 0.7, 0.85, 1.0, 1.2, 1.4, 2.0, 2.8, 4.0]
    steps = {max(1, round(guess * factor / step)) * step for factor in factors}
    return sorted({period for period in steps if period < job.work_seconds} | {job.work_seconds})


def best_period(job: Job, reclaims: Reclaims, step: float, seed: int, runs: int = 1000) -> float:
    """The candidate of the lowest expected cost: by the closed form where it is exact, else by
    simulation. Where every notice is read nothing is lost, and the longest period wins."""
    hazard = reclaims.hazard * (1 - job.notice_read)
    if hazard == 0:
        return job.work_seconds
    periods = candidates(job, hazard, step)
    jobs = [dataclasses.replace(job, period_seconds=period) for period in periods]
    if isinstance(reclaims, Constant) and job.notice_read == 0:
        costs = [expected(one, reclaims.hazard).cost for one in jobs]
    else:
        costs = [float(simulate(one, reclaims, runs, seed).cost.mean()) for one in jobs]
    return periods[int(np.argmin(costs))]


def pareto(planned: Sequence[Planned]) -> set[int]:
    """Positions of the options that no other one beats in both time and cost."""
    front, best = set(), math.inf
    keys = [(round(p.hours, 9), round(p.cost, 6), p.option.machines) for p in planned]
    order = sorted(range(len(planned)), key=keys.__getitem__)
    for position in order:
        if planned[position].cost < best:
            front.add(position)
            best = planned[position].cost
    return front


def recommended(planned: Sequence[Planned], deadline: float | None) -> Planned:
    """The cheapest whose 95th percentile meets the deadline, or else the fastest."""
    finite = [p for p in planned if math.isfinite(p.cost)]
    if not finite:
        raise UserError("plan: no option ever finishes at this interruption rate; lower it")
    if deadline is None:
        return min(finite, key=lambda p: p.cost)
    safe = [p for p in finite if percentile(p.outcome.hours, 95) <= deadline]
    return min(safe, key=lambda p: p.cost) if safe else min(finite, key=lambda p: p.hours)


def check_settings(settings: Settings) -> None:
    """Raise UserError for a number that cannot be, naming the flag that gives it."""
    flags = {"deadline_hours": "--deadline", "period_steps": "--checkpoint-period"}
    positive = ("windows", "runs", "checkpoint_seconds", "batch", "deadline_hours", "period_steps")
    for name, value in vars(settings).items():
        flag = flags.get(name, f"--{name.replace('_', '-')}")
        if isinstance(value, (int, float)) and (math.isnan(value) or value < 0):
            raise UserError(f"{flag}: {value:g} must not be negative")
        if name in positive and value == 0:
            raise UserError(f"{flag}: {value:g} must be greater than 0")
    if settings.notice_read > 1:
        raise UserError(f"--notice-read: {settings.notice_read:g} is not a share from 0 to 1")
