"""Options for a run: machines x GPUs x market, with hours and dollars, as one pandas frame.

Hours are FLOPs over what the GPUs do of their peak, or the traffic between them if that is slower,
plus the start, validations and checkpoints. On spot a reclaim repeats the start and what no
checkpoint saved, and waits for machines. What is traded: means, and no distribution of them.
"""

import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import pandas as pd
import yaml

from cluster import DATA
from cluster.job import Job
from cluster.machines import Gpu, gpu_of
from cluster.pools import Pool
from cluster.prices import MARKETS, USUAL_REGION, price_of, prices_in, slots_of
from cluster.published import Measurement, nearest_measurement
from cluster.sizes import needed_gigabytes
from detalbert.errors import UserError

SLOTS = (1, 4, 8, 16, 32, 64)  # that are tried besides the config's own
# Slots of a machine of which several are tried: smaller ones have slower networks.
JOINED_SLOTS = 8
MOST_TOKENS = 32_768  # of a forward pass with max_tokens_per_forward: auto

# Seconds. Booting a machine and pulling the image, and starting a container, are assumed; compiling
# was measured on an H100 (docs/speed.md).
BOOT = 300.0
START = 60.0
COMPILING = 12.3
NOTICE = 120.0  # EC2's, before it takes a machine back
# Bytes per second. Of text that 8 cores convert to shards: docs/speed.md. Of a checkpoint onto an
# NVMe drive, and of one process that uploads it, assumed. Of Determined's root volume, gp2 of
# 200 GiB: 150 MiB/s (Amazon EBS user guide).
TOKENIZING = 8 * 3.8e6
DRIVE = 1e9
ROOT_VOLUME = 150 * 2**20
UPLOAD = 0.25e9

RECLAIMS: dict[str, dict[str, float]] = yaml.safe_load((DATA / "reclaims.yaml").read_text("utf-8"))


class Option(NamedTuple):
    """A job on machines of a pool."""

    pool: Pool
    gpu: Gpu
    width: int  # slots of a machine
    slots: int
    job: Job

    @property
    def machines(self) -> int:
        return -(-self.slots // self.width)

    @property
    def shards(self) -> int:
        """GPUs that share the states of the model."""
        return self.job.count_shards(self.slots, self.width)

    @property
    def forward(self) -> float:
        """Tokens of a forward pass on a GPU: a rank with less work than one holds runs less."""
        budget = self.job.hparams.max_tokens_per_forward
        configured = MOST_TOKENS if budget == "auto" else budget
        rank_tokens = max(self.job.window, self.job.step_tokens / self.slots)
        return min(configured, rank_tokens)

    def needed_gigabytes(self, tokens: float) -> float:
        """Return the gigabytes of a GPU that holds a forward pass of so many tokens."""
        return needed_gigabytes(
            self.job.sizes,
            tokens=tokens,
            shards=self.shards,
            recomputed=self.job.recomputed,
        )

    @property
    def nearest(self) -> Measurement:
        """The measurement whose efficiency counts."""
        return nearest_measurement(
            self.job.task,
            gpu=self.gpu.name,
            gpus=self.slots,
            flops=self.job.flops,
            forward=self.forward,
        )

    @property
    def why_not(self) -> str:
        """Why the job does not fit; empty if it does."""
        gpu = self.gpu
        needed = self.needed_gigabytes(self.job.hparams.max_seq_length)
        batch = self.job.hparams.global_batch_size
        if gpu.retired:
            return f"AWS launches no {self.pool.machine} since {gpu.retired:%-d %B %Y}"
        if needed > gpu.gigabytes:
            return f"{gpu.name} of {gpu.gigabytes} GB is too small: needs {needed:.1f} GB"
        if gpu.lacks_code(self.job.image):
            return f"the image's torch has no code for {gpu.name}; take one of CUDA {gpu.cuda[0]}"
        if self.slots % self.shards:
            return f"hyperparameters.layout is of {self.shards} processes, not {self.slots}"
        if self.slots > batch:
            return f"{self.slots} slots, and global_batch_size is {batch}"
        return ""


def market_pools(region: str) -> Iterator[Pool]:
    """Yield machines with GPUs that AWS launches in a region as pools without a name, on demand and
    on spot.

    Raises:
        UserError: for a region without prices.
    """
    for machine, prices in prices_in(region).items():
        gpu = gpu_of(machine)
        if gpu is None or gpu.retired:
            continue
        for market in MARKETS:
            yield Pool(
                name="",
                machine=machine,
                slots=int(prices["slots"]),
                spot=market == "spot",
                region=region or USUAL_REGION,
                gpu=gpu,
                price=prices[market],
            )


def priced_pool(pool: Pool, region: str, priced_as: tuple[str, str] | None) -> Pool:
    """Return a pool with its price per hour and machine, if it has one.

    Args:
        pool: of a master.
        region: of AWS; empty: that of the pool.
        priced_as: machine and market whose price per slot counts, and whose GPUs stand for unknown
            ones.

    Raises:
        UserError: for a region without prices.
    """
    machine, market = priced_as or (pool.machine, MARKETS[pool.spot])
    region = region or pool.region or USUAL_REGION
    slots = slots_of(machine)
    price = math.nan
    if machine in prices_in(region) and slots:
        price = price_of(machine, region, market) * (pool.slots or slots) / slots
    return pool._replace(
        machine=pool.machine or machine,
        slots=pool.slots or slots,
        region=region,
        gpu=pool.gpu or gpu_of(machine),
        price=price,
    )


def plan_options(pools: Iterable[Pool], job: Job) -> pd.DataFrame:
    """Return the options for a job, cheapest first, those without a price at the end.

    Returns:
        A frame with a row per pool and number of slots, see `_row`.

    Raises:
        UserError: if no pool has machines of known GPUs for the job.
    """
    rows = []
    for pool in pools:
        if pool.gpu is None or not pool.slots:
            continue
        for slots in _slot_counts(pool.slots, job.slots):
            option = Option(pool, pool.gpu, width=pool.slots, slots=slots, job=job)
            if pool.max_machines is None or option.machines <= pool.max_machines:
                rows.append(_row(option))
    if not rows:
        raise UserError(
            f"no pool has machines of known GPUs for {job.slots} slots",
            key="resources.slots_per_trial",
            cure="set a multiple of a machine's slots, or give --price-pool POOL=INSTANCE or --any",
        )
    options = pd.DataFrame(rows)
    return options.sort_values(["dollars", "hours"], kind="stable", ignore_index=True)


def find_front(options: pd.DataFrame) -> pd.DataFrame:
    """Return the options than which none is both faster and cheaper, of a frame by dollars."""
    fastest_before = options["hours"].cummin().shift(fill_value=math.inf)
    return options[options["hours"] < fastest_before]


def _slot_counts(width: int, own_slots: int) -> list[int]:
    """Return the numbers of slots to try on machines of `width` slots: those that fill machines, of
    small machines one, and the config's own.
    """
    counts = set()
    for slots in (*SLOTS, width, own_slots):
        fills = slots % width == 0
        is_own = slots == own_slots and (fills or slots < width)
        if is_own or (fills and width >= JOINED_SLOTS) or slots == width:
            counts.add(slots)
    return sorted(counts)


def _row(option: Option) -> dict[str, Any]:
    """Return a row of the frame of options."""
    pool = option.pool
    nearest = option.nearest
    why = option.why_not
    period, hours, dollars = _hours_and_dollars(option)
    return {
        "machine": pool.machine,
        "count": option.machines,
        "slots": option.slots,
        "market": MARKETS[pool.spot],
        "region": pool.region,
        "hours": math.nan if why else hours,
        "dollars": math.nan if why else dollars,
        "efficiency": nearest.efficiency,
        "measured": nearest.gpu == option.gpu.name,
        "fits": not why,
        "pool": pool.name or None,
        # Besides what --json has:
        "GPU": option.gpu.name,
        "nearest": nearest.gpu,
        "why": why,
        "period": period,
        "is_tight": option.needed_gigabytes(option.forward) > option.gpu.gigabytes,
    }


def _hours_and_dollars(option: Option) -> tuple[int, float, float]:
    """Return steps between checkpoints, and hours and dollars of a run; of a search, of all trials,
    one after the other.
    """
    job = option.job
    work = job.step_tokens * job.flops * (1 + job.recomputed / 3)
    compute = work / (option.nearest.efficiency * option.gpu.flops * option.slots)
    step = max(compute, _traffic_seconds(option))
    checkpoint = _checkpoint_seconds(option)
    family, _, _ = option.pool.machine.partition(".")
    reclaims = RECLAIMS.get(family, RECLAIMS["usual"])
    rate = reclaims["per_hour"] / 3600 if option.pool.spot else 0.0  # per second
    wait = reclaims["wait_hours"] * 3600

    # On spot checkpoints lose the least time every sqrt(2 x checkpoint / rate) seconds (Young
    # 1974); the config's period counts if it is shorter.
    period = job.length.checkpoint
    if rate:
        best_period = math.sqrt(2 * checkpoint / rate) / step
        period = max(1, min(period, int(best_period)))

    # Without a reclaim. A validation has no backward pass, which is two thirds of the work, and is
    # followed by a checkpoint if it is the best so far, as all are taken to be.
    restart = BOOT + START + (0.0 if job.hparams.compile is False else COMPILING)
    windows = job.validations * job.validation_windows
    seconds = restart + job.text_bytes / TOKENIZING
    seconds += job.length.steps * step
    seconds += windows / job.hparams.global_batch_size * compute / 3
    seconds += (job.length.steps / period + job.length.validations) * checkpoint

    # A reclaim repeats the start and what is lost: half a period, or with a checkpoint on EC2's
    # notice at most that.
    lost = period * step / 2
    if job.hparams.spot_notice and step + checkpoint <= NOTICE:
        lost = min(lost, NOTICE)
    again = min(0.9, rate * (restart + lost))
    paid_seconds = seconds / (1 - again)

    # Machines are waited for at the start, and after each reclaim.
    waits = rate * paid_seconds + rate * wait / (1 + rate * wait)
    hours = job.trials * (paid_seconds + waits * wait) / 3600
    dollars = job.trials * paid_seconds / 3600 * option.machines * option.pool.price
    return period, hours, dollars


def _traffic_seconds(option: Option) -> float:
    """Return the seconds in which a step's numbers travel between machines, beside its products.
    Inside a machine they hide behind these.
    """
    job = option.job
    gradient = 4  # bytes

    # Replicas sum their gradients in a ring, which sends them twice. A replica over several
    # machines also gathers half-precision weights twice per forward, and scatters gradients.
    span = max(1, option.shards // option.width)  # machines of a replica
    replicas = max(1, option.machines // span)
    forwards = math.ceil(job.step_tokens / option.slots / option.forward)
    sent = 2 * gradient / span * (replicas - 1) / replicas  # bytes per parameter
    sent += forwards * (2 * 2 + 4) * (span - 1) / span
    return job.parameters * sent / (option.gpu.gbits / 8 * 1e9)


def _checkpoint_seconds(option: Option) -> float:
    """Return the seconds for which training waits at a checkpoint: weights and two moments in
    fp32, of which each machine of a sharded model writes its share.
    """
    is_sharded = option.shards > 1
    stored = 12 * option.job.parameters / (option.machines if is_sharded else 1)  # bytes
    uploads = option.width if is_sharded else 1
    has_drive = option.gpu.store and option.job.has_scratch
    disk = DRIVE if has_drive else ROOT_VOLUME
    return stored / disk + stored / UPLOAD / uploads
