"""Faults of an estimate, by key of the experiment config.

Each rests on figures that are modelled, not measured: a fault is reported where the run would end
or lose an hour's work even if the figures are somewhat off, and what is merely slow is a warning.
"""

from collections.abc import Iterator

from cluster.configs.values import Finding
from cluster.estimates.estimate import Estimate
from cluster.facts import spot


def find_faults(estimate: Estimate) -> Iterator[Finding]:
    """Yield what keeps a job from running on its pool, and as warnings what makes it slow."""
    yield from _memory(estimate)
    if estimate.demand.layout:
        yield from _data_ranks(estimate)
        yield from _network(estimate)
        if estimate.pool.spot:
            yield from _notice(estimate)
    if estimate.pool.spot:
        yield from _lost_work(estimate)


def _memory(estimate: Estimate) -> Iterator[Finding]:
    """Yield a finding if a window, or the configured forward pass, does not fit a GPU."""
    gpu = estimate.gpu
    memory = f"{gpu.gigabytes} GB of a {gpu.name} (modelled)"
    budget = estimate.hparams.max_tokens_per_forward
    sharded = bool(estimate.demand.layout)
    # A key of sharded models alone: activations are recomputed in place of being kept.
    or_recompute = ""
    if sharded and estimate.demand.recomputed < 1:
        or_recompute = ", or activation_checkpointing: full"
    if estimate.max_tokens < estimate.hparams.max_seq_length:
        key = "hyperparameters.model"
        cure = "take a smaller model or another GPU"
        if sharded:
            key = "hyperparameters.layout"
            cure = "use more shards or another GPU"
        yield Finding(
            key,
            problem=f"does not train in {memory}",
            cure=f"{cure}{or_recompute}",
        )
    elif budget != "auto" and budget > estimate.max_tokens:
        yield Finding(
            "hyperparameters.max_tokens_per_forward",
            problem=f"{budget} tokens do not fit {memory}",
            cure=f"use {estimate.proposed_tokens} or less{or_recompute}",
        )


def _data_ranks(estimate: Estimate) -> Iterator[Finding]:
    """Yield a finding if a step has fewer windows than there are ranks to deal them to."""
    batch = estimate.hparams.global_batch_size
    ranks = estimate.demand.data_ranks
    if batch < ranks:
        layout = " x ".join(f"{name} {count}" for name, count in estimate.demand.layout.items())
        yield Finding(
            "hyperparameters.global_batch_size",
            problem=f"{batch} windows for {ranks} data ranks ({layout}): some train on nothing",
            cure=f"use {ranks} or more, or a larger layout.tensor",
        )


def _network(estimate: Estimate) -> Iterator[Finding]:
    """Yield a warning if training waits for one plain interface where EFA would be faster."""
    step = estimate.step
    machine = estimate.machine
    offers_efa = machine is not None and machine.efa > machine.plain
    if offers_efa and not step.has_efa and step.plain > step.compute / 2:
        yield Finding(
            "resources.resource_pool",
            problem=f"slow: {step.sent / 1e9:.0f} GB leave each machine in a step: "
            f"{step.plain:.1f} s on the one plain interface of pool {estimate.pool.name!r}, "
            f"beside {step.compute:.1f} s of compute (modelled), and {step.efa:.1f} s with EFA",
            cure="use machines with EFA (cluster/efa.md), fewer and larger forwards, or shards "
            "inside a machine",
            warning=True,
        )


def _notice(estimate: Estimate) -> Iterator[Finding]:
    """Yield a finding if the job cannot leave within EC2's notice."""
    checkpoint = estimate.checkpoint
    seconds = estimate.seconds_after_notice
    if seconds > spot.NOTICE_SECONDS:
        gigabytes = checkpoint.stored / 1e9
        step = seconds - checkpoint.seconds
        yield Finding(
            "environment.environment_variables",
            problem=f"a checkpoint does not fit EC2's two-minute notice: {step:.0f} s to the end "
            f"of a step, {checkpoint.disk:.0f} s to write {gigabytes:.1f} GB a machine to "
            f"{checkpoint.place}, {checkpoint.upload:.0f} s to upload it, {seconds:.0f} s in all "
            "(modelled)",
            cure="set TMPDIR to the instance store (cluster/efa.md), or use more machines",
        )


def _lost_work(estimate: Estimate) -> Iterator[Finding]:
    """Yield a finding if a reclaim without notice loses too much work, with full-length windows."""
    period = estimate.period
    hparams = estimate.hparams
    # Windows of full length are the worst case: those of SQuAD have 174 of 384 tokens on average.
    step = estimate.step.seconds * hparams.max_seq_length / estimate.demand.window
    if period is not None and period * step > spot.MAX_LOST_SECONDS:
        default = "" if hparams.checkpoint_period else " (an epoch, the default)"
        minutes = period * step / 60
        most_steps = max(1, int(spot.MAX_LOST_SECONDS / step))
        yield Finding(
            "hyperparameters.checkpoint_period",
            problem=f"{period} steps{default} on spot pool {estimate.pool.name!r}: a reclaim "
            f"without notice costs up to {minutes:.0f} minutes of {estimate.slots.number} slots "
            f"({estimate.rate.source})",
            cure=f"use {most_steps} or less",
        )
