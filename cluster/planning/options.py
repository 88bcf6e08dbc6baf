"""Options for a run: machines, slots and market, with time, cost, and why one cannot run.

Every pool is tried with a few numbers of slots, and each option is checked and estimated in full,
as if its keys stood in the config: one that is recommended passes cluster.check. That is slower
than a formula over machines would be: it takes seconds for all types of AWS.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from cluster.configs.fleet import check_fleet, trials_per_machine
from cluster.configs.masterconf import Cluster, Pool
from cluster.configs.search import Load, Search, search_of
from cluster.configs.values import Finding
from cluster.estimates.estimate import Estimate, estimate_model, ranked_layouts
from cluster.estimates.faults import find_faults
from cluster.estimates.findings import check_place, check_searcher, check_work
from cluster.estimates.job import DataSize, Job, parse_jobs, read_size
from cluster.estimates.times import STARTING, time_parts
from cluster.facts.machines import ROOT
from cluster.facts.prices import Price, retired
from cluster.facts.rates import Rates
from cluster.planning.cases import SURE, Case, choose_period, simulate_cases
from detalbert.errors import UserError
from detalbert.settings.values import Config

COUNTS = (1, 4, 8, 16, 32, 64)  # slots that are tried beside the config's own
# Slots of a machine that is tried with others of its kind: smaller ones have slower networks than
# those on which speeds were measured.
MIN_SLOTS_FOR_SCALING = 8
MOST_MACHINES = 64  # that are tried of a pool without a limit


class Request(NamedTuple):
    """Prices by which options are computed, and limits that they should keep to."""

    rates: Rates
    root: Path = ROOT  # parent folder of relative model folders
    limits: Mapping[str, float] = {}  # of `hours` and `cost`


@dataclass(frozen=True, eq=False)
class Option:
    """A pool's machines for a number of slots; `why_not` says why the run cannot take it."""

    pool: Pool
    price: Price | None  # None: it is not known
    slots: int
    search: Search
    estimate: Estimate | None = None  # of a trial
    cases: Sequence[Case] = ()  # low, middle, high
    period: int | None = None
    keys: Mapping[str, Any] = field(default_factory=dict)  # hyperparameters to write
    why_not: str = ""
    slow: str = ""  # what makes it slow

    @property
    def width(self) -> int:
        """Slots of a machine."""
        return self.pool.slots_per_agent or self.slots

    @property
    def machines(self) -> int:
        """Machines of a trial."""
        return -(-self.slots // self.width)

    @property
    def at_once(self) -> int:
        """Trials that the searcher and the pool allow at a time."""
        if self.pool.max_agents is None:
            return self.search.at_once
        fits = self.pool.max_agents // self.machines * self.trials_per_machine
        return max(1, min(self.search.at_once, fits))

    @property
    def trials_per_machine(self) -> int:
        """Trials that a machine has room for; 1 if a trial takes several."""
        return trials_per_machine(self.slots, self.width)

    @property
    def all_machines(self) -> int:
        """Machines of all trials that run at a time; small trials share one."""
        return -(-self.at_once // self.trials_per_machine) * self.machines

    @property
    def name(self) -> str:
        market = "spot" if self.pool.spot else "on demand"
        if self.pool.own:
            market = f"of pool {self.pool.name}"
        machine = self.pool.instance
        if not machine:
            machine = self.pool.gpu.name if self.pool.gpu else "machine"
        return f"{self.all_machines} x {machine}, {market}"

    @property
    def ends(self) -> bool:
        """Whether the run ends in all three cases."""
        return bool(self.cases) and math.isfinite(self.figures("hours")[2])

    def figures(self, figure: str) -> tuple[float, float, float]:
        """Return low, mean and high of `hours` or `cost`; infinite where it does not finish, and
        the cost without a price.
        """
        lows, _, highs = zip(*(case.range(figure) for case in self.cases), strict=True)
        return min(lows), self.mean(figure), max(highs)

    def mean(self, figure: str) -> float:
        """Return the mean `hours` or `cost` of the middle case; infinite without an estimate."""
        return self.cases[1].figures[figure] if self.cases else math.inf

    def sure(self, figure: str) -> float:
        """Return what SURE per cent of the runs of the middle case keep below."""
        return self.cases[1].figures[f"{figure} {SURE} %"]


def plan_options(
    config: Config, cluster: Cluster, request: Request, size: DataSize | None = None
) -> list[Option]:
    """Return the options of a config in the pools of a cluster, those that can run and others.

    Args:
        size: of the data; None: as far as it is known without reading it.

    Raises:
        UserError: if the config is invalid, or no pool has machines with a known GPU.
    """
    jobs = list(parse_jobs(config, pool=None, root=request.root, size=size))

    # First what no choice of machines can mend.
    findings = list(check_searcher(config, jobs[0].workload))
    for job in jobs:
        findings += check_work(job)
    fault = first_fault(findings)
    if fault is not None:
        raise UserError(fault.problem, key=fault.key, cure=fault.cure)
    if any(job.model is None for job in jobs):
        raise UserError(
            "its sizes are not known, and nothing is downloaded",
            key="hyperparameters.model",
            cure="give a folder with its config.json, or model_config",
        )

    options = []
    for pool in cluster.pools.values():
        for slots in _slot_counts(pool, own_slots=jobs[0].slots):
            option = plan_option(config, jobs, pool, slots, cluster, request)
            if option is not None:
                options.append(option)
    if not options:
        raise UserError(
            "no pool has machines with a known GPU",
            key="resources.resource_pool",
            cure="say which they are like, --price-pool POOL=INSTANCE, or give --any",
        )
    return options


def _slot_counts(pool: Pool, own_slots: int) -> list[int]:
    """Return the numbers of slots to try in a pool: the config's, and those that fill machines."""
    width = pool.slots_per_agent
    if not width:
        return [own_slots]
    max_slots = MOST_MACHINES * width
    if pool.max_agents is not None:
        max_slots = pool.max_agents * width
    elif pool.own:  # that there are more machines than one or the config's, no file says
        max_slots = max(width, own_slots)
    counts = {own_slots}
    for count in COUNTS:
        fills_machines = count % width == 0 and count <= max_slots
        if fills_machines and (width >= MIN_SLOTS_FOR_SCALING or count == width):
            counts.add(count)
    return sorted(counts)


def plan_own(config: Config, cluster: Cluster, request: Request) -> Option | None:
    """Return the option that a config is as it stands; None if its pool or the GPU of its machines
    is not known. Raises UserError if the config is invalid.
    """
    pool = cluster.pool_of(config)
    if pool is None:
        return None
    jobs = list(parse_jobs(config, pool=None, root=request.root))
    if any(job.model is None for job in jobs):
        return None
    if jobs[0].size.training is None:
        size = read_size(jobs[0])
        jobs = [job._replace(size=size) for job in jobs]
    return plan_option(config, jobs, pool, jobs[0].slots, cluster, request)


def plan_option(
    config: Config,
    jobs: Sequence[Job],
    pool: Pool,
    slots: int,
    cluster: Cluster,
    request: Request,
) -> Option | None:
    """Return the option that runs a config on so many slots of a pool; None if its machines have no
    known GPU.

    Args:
        jobs: the trials at the corners of the config's search.
    """
    if pool.gpu is None:
        return None
    rates = request.rates
    instance, _ = pool.priced_as
    price = rates.at(rates.kind(instance, pool.region))
    lengths = [job.length for job in jobs if job.length is not None]
    option = Option(pool=pool, price=price, slots=slots, search=search_of(config, lengths))
    resources = {
        **(config.get("resources") or {}),
        "slots_per_trial": slots,
        "resource_pool": pool.name,
    }
    moved = {**config, "resources": resources}
    retirement = retired(pool.instance, rates.table(pool.region))
    if retirement is not None and not pool.own:
        return replace(option, why_not=retirement)
    why_not = _reason(check_fleet(moved, cluster))
    if why_not:
        return replace(option, why_not=why_not)

    trials = [job._replace(config=moved, pool=pool, slots=slots) for job in jobs]
    try:
        fits, keys = _fit(trials)
        fitted = _largest(fits)

        # On spot the notice must be read, and a reclaim without one must not cost too much.
        period = choose_period(fitted)
        if pool.spot and not fitted.hparams.spot_notice:
            keys["spot_notice"] = True
        if pool.spot and period != fitted.hparams.checkpoint_period:
            keys["checkpoint_period"] = period

        # All trials of a search share the keys that the option writes.
        written = [_with_keys(estimated, keys) for estimated in fits]
        option = replace(option, estimate=fitted, keys=keys, period=period)
        option = _simulate(option, fitted=_with_keys(fitted, keys), trials=written)
    except UserError as error:  # of its memory, layout or length
        return replace(option, why_not=str(error))
    findings = list[Finding]()
    for estimated in written:
        findings += [*check_place(estimated.job), *find_faults(estimated)]
    warnings = [finding.detail for finding in findings if finding.warning]
    return replace(
        option,
        why_not=_reason(findings),
        slow=warnings[0] if warnings else "",
    )


def first_fault(findings: Iterable[Finding]) -> Finding | None:
    """Return the first finding that is no warning; None if there is none."""
    return next((finding for finding in findings if not finding.warning), None)


def _reason(findings: Iterable[Finding]) -> str:
    """Return key and text of the first finding that is no warning; empty if there is none."""
    fault = first_fault(findings)
    return f"{fault.key}: {fault.detail}" if fault is not None else ""


def _fit(trials: Sequence[Job]) -> tuple[list[Estimate], Config]:
    """Return the estimates of a search's trials, and the keys that make them fit the pool, if any
    must change: one set for all trials, as they share a config.
    """
    estimates = []
    for job in trials:
        assert job.pool is not None and job.pool.gpu is not None and job.model is not None
        estimates.append(estimate_model(job, job.pool, job.pool.gpu, job.model))
    largest = _largest(estimates)
    if largest.tokens <= largest.max_tokens:
        return estimates, {}

    # A sharded model gets the fastest layout that suits every trial, another one smaller forwards.
    candidates: list[Config] = []
    if largest.demand.layout:
        candidates = [layout_keys(layout) for layout in ranked_layouts(largest)]
    elif largest.proposed_tokens >= largest.hparams.max_seq_length:
        candidates = [{"max_tokens_per_forward": largest.proposed_tokens}]
    for keys in candidates:
        changed = [estimated.changed(keys) for estimated in estimates]
        if all(estimated.fits for estimated in changed):
            return changed, keys
    return estimates, {}


def _largest(estimates: Sequence[Estimate]) -> Estimate:
    """Return the trial that needs most memory, of equal ones the slowest."""
    return max(estimates, key=lambda estimated: (estimated.needed, estimated.step.seconds))


def layout_keys(estimated: Estimate) -> Config:
    """Return the hyperparameters that set the layout of a sharded model, and its forward passes."""
    hparams: Any = estimated.hparams  # of a sharded model, with `activation_checkpointing`
    return {
        "layout": dict(estimated.demand.layout),
        "activation_checkpointing": hparams.activation_checkpointing,
        "max_tokens_per_forward": hparams.max_tokens_per_forward,
    }


def _with_keys(estimated: Estimate, keys: Mapping[str, Any]) -> Estimate:
    """Return an estimate whose trial has the keys that an option writes; they do not change its
    step.
    """
    hparams = replace(estimated.hparams, **keys)
    return replace(estimated, job=estimated.job._replace(hparams=hparams))


def _work_seconds(estimated: Estimate) -> float:
    """Return the time of a whole trial from its first step on, without reclaims."""
    return sum(part.seconds for part in time_parts(estimated) if part.name not in STARTING)


def _simulate(option: Option, fitted: Estimate, trials: Sequence[Estimate]) -> Option:
    """Return the option with its cases.

    Args:
        fitted: the trial that is simulated.
        trials: at the corners of the search, which may be shorter.
    """
    # The mean trial, in lengths of the one that is simulated.
    seconds = sum(_work_seconds(trial) for trial in trials) / len(trials)
    mean_length = seconds / _work_seconds(fitted)
    mean, longest = option.search.loads(option.at_once, option.trials_per_machine)
    _, on_spot = option.pool.priced_as
    cases = simulate_cases(
        fitted,
        hourly=option.price.hourly_range(on_spot) if option.price else [math.inf] * 3,
        machines=option.all_machines,
        mean=Load(mean.starts, work=mean.work * mean_length),
        longest=Load(longest.starts, work=longest.work * mean_length),
    )
    return replace(option, cases=cases)
