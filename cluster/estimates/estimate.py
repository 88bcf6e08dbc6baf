"""Estimate of a job on its pool's machines: memory of a GPU, and the time of a step.

Memory and traffic are computed from sizes (modelled); speeds name their source (speeds.py). What
may run at the same time is not added up: of products, sums inside a machine and the network the
slowest decides.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from cluster.configs.masterconf import Pool
from cluster.estimates import speeds, traffic
from cluster.estimates.job import Job
from cluster.facts.machines import MACHINES, Gpu, Machine
from detalbert.errors import UserError
from detalbert.settings.hparams import StepHParams
from detalbert.training.sizing import Demand, Model, Slots

MOST_TOKENS = 32_768  # of a forward pass with max_tokens_per_forward: auto
TOKEN_MULTIPLE = 128  # a proposed max_tokens_per_forward is rounded down to one


class Step(NamedTuple):
    """Seconds of an optimizer step, and the bytes that each machine sends in it."""

    compute: float  # products, and the sums of tensor-parallel ranks that these wait for
    inside: float  # sums of gradients between the GPUs of a machine
    plain: float  # traffic between machines by one plain interface; 0: its rate is not known
    efa: float  # the same with EFA
    has_efa: bool  # whether the containers reach it
    sent: float

    @property
    def between(self) -> float:
        """Seconds of traffic between machines, by the interfaces that the containers reach."""
        return self.efa if self.has_efa else self.plain

    @property
    def seconds(self) -> float:
        return max(self.compute, self.inside, self.between)


class Checkpoint(NamedTuple):
    """A checkpoint: bytes that each machine writes, and the seconds of that."""

    stored: float
    place: str  # where it is written first
    disk: float
    upload: float

    @property
    def seconds(self) -> float:
        """Seconds for which training waits."""
        return self.disk + self.upload


@dataclass(frozen=True)
class Estimate:
    """A job on the GPUs of its pool."""

    job: Job
    pool: Pool
    gpu: Gpu
    model: Model
    slots: Slots
    demand: Demand
    max_tokens: int  # of the largest forward pass that fits
    tokens: int  # of the configured one
    rate: speeds.Rate
    step: Step
    checkpoint: Checkpoint

    @property
    def hparams(self) -> StepHParams:
        return self.job.hparams

    @property
    def machine(self) -> Machine | None:
        """Hardware of a machine, if it is known."""
        return MACHINES.get(self.pool.instance)

    @property
    def machines(self) -> int:
        return count_machines(self.slots)

    @property
    def needed(self) -> float:
        """Bytes of a GPU with the configured forward pass."""
        return self.demand.memory.at(self.tokens)

    @property
    def fits(self) -> bool:
        """Whether a GPU holds the configured forward pass, and each data rank has a window."""
        has_windows = self.demand.data_ranks <= self.hparams.global_batch_size
        return self.tokens <= self.max_tokens and has_windows

    @property
    def proposed_tokens(self) -> int:
        """Tokens of a forward pass to configure in place of one that does not fit."""
        return self.max_tokens // TOKEN_MULTIPLE * TOKEN_MULTIPLE

    @property
    def forwards(self) -> int:
        """Forward passes of a data rank in a step."""
        return count_forwards(self.demand, self.hparams, self.tokens)

    @property
    def step_tokens(self) -> float:
        return self.hparams.global_batch_size * self.demand.window

    @property
    def seconds_after_notice(self) -> float:
        """Seconds from EC2's notice until the job has left: its step, disk and upload."""
        return traffic.READ_SECONDS + self.step.seconds + self.checkpoint.seconds

    @property
    def period(self) -> int | None:
        """Steps between checkpoints; None: an epoch, whose size is not known."""
        if self.job.size.training is not None:
            return self.hparams.length(self.job.size.training).checkpoint
        return self.hparams.checkpoint_period

    def changed(self, keys: Mapping[str, Any]) -> "Estimate":
        """Return the estimate of the same job with other hyperparameters."""
        hparams = dataclasses.replace(self.hparams, **keys)
        job = self.job._replace(hparams=hparams)
        return estimate_model(job, self.pool, self.gpu, self.model)


def estimate(job: Job) -> Estimate | None:
    """Estimate a job; return None if its pool has no known GPU, or its model is not known.

    Raises:
        UserError: if its layout does not fit the slots, the machines or the model.
    """
    if job.pool is None or job.pool.gpu is None or job.model is None:
        return None
    return estimate_model(job, job.pool, job.pool.gpu, job.model)


def estimate_model(job: Job, pool: Pool, gpu: Gpu, model: Model) -> Estimate:
    """Estimate a job whose model and GPU are known. Raises UserError as `estimate` does."""
    hparams = job.hparams
    slots = Slots(
        number=job.slots,
        per_machine=pool.slots_per_agent or job.slots,
        has_bf16=gpu.has_bf16,
    )
    demand = job.workload.sizing.demand(model, hparams, slots)

    # The forward pass: as large as the memory allows, or as configured, whether it fits or not.
    max_tokens = demand.memory.tokens(gpu.gigabytes)
    budget = hparams.max_tokens_per_forward
    tokens = min(max_tokens, MOST_TOKENS) if budget == "auto" else budget

    # Its speed on one GPU; a rank with less work than one pass holds runs a smaller one.
    shape = speeds.Shape(
        task=demand.task,
        flops=demand.flops,
        gpu=gpu.name,
        half=gpu.has_bf16,
        gigabytes=gpu.gigabytes,
        gpus=job.slots,
        forward=int(min(rank_tokens(demand, hparams), max(1, tokens))),
        # An encoder's layers are compiled by default; published runs on older GPUs were not.
        compiled=hparams.compile is not False,
        recomputed=demand.recomputed,
    )
    rate = speeds.speed(shape, gpu)

    # Then what a step and a checkpoint take, of all GPUs together.
    forwards = count_forwards(demand, hparams, tokens)
    step = time_step(job, pool, model, demand, slots, rate=rate.tokens, forwards=forwards)
    return Estimate(
        job=job,
        pool=pool,
        gpu=gpu,
        model=model,
        slots=slots,
        demand=demand,
        max_tokens=max_tokens,
        tokens=tokens,
        rate=rate,
        step=step,
        checkpoint=time_checkpoint(job, pool, model, demand, slots),
    )


def count_machines(slots: Slots) -> int:
    return -(-slots.number // slots.per_machine)


def rank_tokens(demand: Demand, hparams: StepHParams) -> float:
    """Return the tokens of a step on the data rank that has the most windows."""
    return -(-hparams.global_batch_size // demand.data_ranks) * demand.window


def count_forwards(demand: Demand, hparams: StepHParams, tokens: int) -> int:
    """Return the forward passes of `tokens` tokens that a data rank makes in a step."""
    return max(1, math.ceil(rank_tokens(demand, hparams) / max(1, tokens)))


def time_step(
    job: Job,
    pool: Pool,
    model: Model,
    demand: Demand,
    slots: Slots,
    rate: float,
    forwards: int,
) -> Step:
    """Return the seconds of an optimizer step by what runs at the same time.

    Args:
        rate: tokens a second of one GPU.
        forwards: forward passes of a data rank in a step.
    """
    sizes = model.sizes
    machine = MACHINES.get(pool.instance)
    tokens = job.hparams.global_batch_size * demand.window
    compute = tokens / slots.number / rate
    inside = 0.0
    machines_of_replica = 1
    # Bytes of a number in products, and of one of a gradient that is sent.
    weight_bytes = 4 if job.hparams.precision == "fp32" else 2
    gradient_bytes = 4 if job.hparams.allreduce_dtype == "fp32" else 2
    link = machine.link * 1e9 if machine else math.inf  # bytes per second, one way
    if demand.layout:
        # In every layer tensor-parallel ranks sum the hidden state four times, forward and
        # backward (Shoeybi 2019, section 3), in a ring between GPUs; products wait for sums.
        tensor = demand.layout["tensor"]
        sums = sizes.layers * 4 * 2 * (tensor - 1) / tensor
        compute += sums * sizes.hidden * weight_bytes * tokens / demand.data_ranks / link
        machines_of_replica = max(1, demand.layout["shard"] * tensor // slots.per_machine)
    else:
        # A ring sends gradients twice.
        ranks = min(slots.number, slots.per_machine)
        inside = 2 * (ranks - 1) / ranks * sizes.parameters * gradient_bytes / link
    sent = traffic.sent_bytes(
        sizes.parameters,
        machines=count_machines(slots),
        span=machines_of_replica,
        forwards=forwards,
        weight_bytes=weight_bytes,
        gradient_bytes=gradient_bytes,
    )
    return Step(
        compute=compute,
        inside=inside,
        plain=traffic.seconds(sent, machine.plain if machine else 0),
        efa=traffic.seconds(sent, machine.efa if machine else 0),
        has_efa=traffic.has_efa(job.config, pool),
        sent=sent,
    )


def time_checkpoint(job: Job, pool: Pool, model: Model, demand: Demand, slots: Slots) -> Checkpoint:
    """Return the size of a checkpoint, weights and two moments in fp32, and its seconds."""
    # Each machine writes its share of a sharded model, and uploads it by all its ranks.
    writers = count_machines(slots) if demand.layout else 1
    uploaders = slots.per_machine if demand.layout else 1
    stored = 12 * model.sizes.parameters / writers  # three numbers of 4 bytes a parameter
    place, disk_rate = traffic.scratch(job.config, pool)
    return Checkpoint(
        stored=stored,
        place=place,
        disk=stored / disk_rate,
        upload=stored / traffic.UPLOAD_RATE / uploaders,
    )


def ranked_layouts(estimate: Estimate) -> list[Estimate]:
    """Return all layouts of a sharded model that fit in place of an estimate's, fastest first.

    Each has the largest forward pass that leaves no data rank without windows; ties are sorted by
    memory, the smallest first.
    """
    layouts = sorted(_layouts(estimate), key=lambda layout: layout.needed)
    return sorted(layouts, key=lambda layout: round(layout.step.seconds, 3))


def _layouts(estimate: Estimate) -> Iterator[Estimate]:
    hparams = estimate.hparams
    for keys in estimate.job.workload.sizing.layouts(hparams, estimate.slots):
        try:
            layout = estimate.changed(keys)
        except UserError:  # heads that the tensor does not divide, a family without a plan
            continue

        # As many windows in a forward pass as a rank has in a step, if the memory holds them.
        ranks = layout.demand.data_ranks
        windows = -(-hparams.global_batch_size // ranks)
        windows = min(windows, layout.max_tokens // hparams.max_seq_length)
        if windows > 0 and ranks <= hparams.global_batch_size:
            yield layout.changed({"max_tokens_per_forward": windows * hparams.max_seq_length})
