"""Faults of an estimate, by key of the experiment config."""

from collections.abc import Iterator

from cluster.estimates.estimate import Estimate
from cluster.facts import spot
from detalbert.settings.schema import Finding


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
    gpu = estimate.gpu
    most = estimate.most
    budget = estimate.hparams.max_tokens_per_forward
    where = f"{gpu.gigabytes} GB of a {gpu.name} (modelled)"
    sharded = bool(estimate.demand.layout)
    more = ""
    if sharded and estimate.demand.recomputed < 1:
        more = ", or activation_checkpointing: full"
    if most < estimate.hparams.max_seq_length:
        key = "hyperparameters.model"
        cure = "take a smaller model or another GPU"
        if sharded:
            key = "hyperparameters.layout"
            cure = "use more shards or another GPU"
        yield Finding(key, f"does not train in {where}; {cure}{more}")
    elif budget != "auto" and budget > most:
        problem = f"{budget} tokens do not fit {where}; use {most // 128 * 128} or less{more}"
        yield Finding("hyperparameters.max_tokens_per_forward", problem)


def _data_ranks(estimate: Estimate) -> Iterator[Finding]:
    batch = estimate.hparams.global_batch_size
    ranks = estimate.demand.data_ranks
    if batch < ranks:
        layout = " x ".join(f"{name} {count}" for name, count in estimate.demand.layout.items())
        problem = f"{batch} windows for {ranks} data ranks ({layout}): some train on nothing"
        cure = f"use {ranks} or more, or a larger layout.tensor"
        yield Finding("hyperparameters.global_batch_size", f"{problem}; {cure}")


def _network(estimate: Estimate) -> Iterator[Finding]:
    """Yield a warning if training waits for one plain interface where EFA would be faster."""
    step = estimate.step
    machine = estimate.machine
    offers_efa = machine is not None and machine.efa > machine.plain
    if offers_efa and not step.has_efa and step.plain > step.compute / 2:
        yield Finding(
            "resources.resource_pool",
            f"slow: {step.sent / 1e9:.0f} GB leave each machine in a step: {step.plain:.1f} s on "
            f"the one plain interface of pool {estimate.pool.name!r}, beside {step.compute:.1f} s "
            f"of compute (modelled), and {step.efa:.1f} s with EFA; use machines with EFA "
            "(cluster/efa.md), fewer and larger forwards, or shards inside a machine",
            warning=True,
        )


def _notice(estimate: Estimate) -> Iterator[Finding]:
    """Yield a finding if the job cannot leave within EC2's notice."""
    checkpoint = estimate.checkpoint
    leaving = estimate.leaving
    if leaving > spot.NOTICE_SECONDS:
        step = leaving - checkpoint.seconds
        yield Finding(
            "environment.environment_variables",
            f"a checkpoint does not fit EC2's two-minute notice: {step:.0f} s to the end of a "
            f"step, {checkpoint.disk:.0f} s to write {checkpoint.stored / 1e9:.1f} GB a machine to "
            f"{checkpoint.place}, {checkpoint.upload:.0f} s to upload it, {leaving:.0f} s in all "
            "(modelled); set TMPDIR to the instance store (cluster/efa.md), or use more machines",
        )


def _lost_work(estimate: Estimate) -> Iterator[Finding]:
    """Yield a finding if a reclaim without notice loses too much work, with full-length windows."""
    period = estimate.period
    hparams = estimate.hparams
    step = estimate.step.seconds * hparams.max_seq_length / estimate.demand.window
    if period is not None and period * step > spot.LONGEST:
        default = "" if hparams.checkpoint_period else " (an epoch, the default)"
        yield Finding(
            "hyperparameters.checkpoint_period",
            f"{period} steps{default} on spot pool {estimate.pool.name!r}: a reclaim without "
            f"notice costs up to {period * step / 60:.0f} minutes of {estimate.slots.number} slots "
            f"({estimate.rate.source}); use {max(1, int(spot.LONGEST / step))} or less",
        )
