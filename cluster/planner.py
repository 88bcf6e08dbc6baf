"""Estimates of whether an experiment fits its machines, how long it takes and what it costs.

Memory and traffic are computed from sizes (modelled); speeds name their source (speeds.py).
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from cluster import speeds
from cluster.fleet import slots_of
from cluster.machines import MACHINES, Machine
from cluster.masterconf import Pool
from cluster.models import Model, find_model
from cluster.prices import Price
from cluster.published import KNOWN_WINDOWS
from cluster.schema import mapping
from detalbert.engine.memory import Memory, replicated
from detalbert.settings.hparams import StepHParams
from lm.hparams import LmHParams
from lm.layout import Layout, choose_layout, parse_layout, split_memory
from pretrain.hparams import PretrainHParams


class Planned(NamedTuple):
    """An experiment planned on a pool's machines: seconds, bytes, and rates per second."""

    config: dict[str, Any]
    hparams: StepHParams
    pool: Pool  # with a GPU
    model: Model
    slots: int
    layout: Layout | None  # of a model in parts
    memory: Memory
    window: float  # tokens: on SQuAD the real ones, but all where the rate is of a padded run
    flops: float  # of a token, forward and backward
    rate: speeds.Rate
    efa: bool

    @property
    def width(self) -> int:
        """Slots per machine."""
        return self.pool.slots_per_agent or self.slots

    @property
    def machines(self) -> int:
        return -(-self.slots // self.width)

    @property
    def most(self) -> int:
        """Tokens of the largest forward pass that fits."""
        return self.memory.tokens(self.pool.known_gpu.gigabytes)

    @property
    def tokens(self) -> int:
        """Tokens per forward: the configured number; for auto, as many as fit, at most 32,768."""
        budget = self.hparams.max_tokens_per_forward
        return min(self.most, 32_768) if budget == "auto" else budget

    @property
    def data_ranks(self) -> int:
        return self.slots if self.layout is None else self.layout.data_ranks

    @property
    def forwards(self) -> int:
        """Forward passes per data rank and step."""
        share = -(-self.hparams.global_batch_size // self.data_ranks)
        return max(1, math.ceil(share * self.window / max(1, self.tokens)))

    @property
    def half(self) -> bool:
        return self.hparams.precision != "fp32"

    @property
    def machine(self) -> Machine | None:
        return MACHINES.get(self.pool.instance)

    @property
    def compute(self) -> float:
        """Seconds per step without the network between machines.

        In every layer tensor-parallel ranks sum the hidden state four times, forward and backward
        (Shoeybi 2019, section 3), in a ring between GPUs.
        """
        tokens = self.hparams.global_batch_size * self.window
        seconds = tokens / self.slots / self.rate.tokens
        if self.layout is not None and self.layout.tensor > 1 and self.machine:
            sizes, peers = self.model.sizes, self.layout.tensor
            sent = sizes.layers * 4 * 2 * (peers - 1) / peers * sizes.hidden * (4 - 2 * self.half)
            seconds += tokens / self.data_ranks * sent / (self.machine.link * 1e9)
        return seconds

    @property
    def sent(self) -> float:
        """Bytes that each machine sends per step."""
        shards = 1 if self.layout is None else self.layout.shard * self.layout.tensor
        replica = max(1, shards // self.width), self.forwards
        widths = 4 - 2 * self.half, 4 if self.hparams.allreduce_dtype == "fp32" else 2
        return speeds.sent_bytes(self.model.sizes.parameters, self.machines, *replica, *widths)

    def network(self, efa: bool) -> float:
        """Return the seconds of network traffic per step; 0 if the machines' rate is not known."""
        gbits = self.machine and (self.machine.efa if efa else self.machine.plain)
        return self.sent / (gbits / 8 * 1e9) if gbits else 0.0

    @property
    def step(self) -> float:
        """Seconds per step: FSDP overlaps network and compute, so the longer of the two."""
        return max(self.compute, self.network(self.efa))

    @property
    def stored(self) -> float:
        """Bytes that one machine writes per checkpoint: weights and two moments."""
        parts = 1 if self.layout is None else self.machines
        return 12 * self.model.sizes.parameters / parts

    def leaving(self) -> tuple[float, float, float]:
        """Return the seconds to finish the step, to write and to upload, after a notice."""
        uploading = 1 if self.layout is None else self.width
        disk = self.stored / speeds.scratch(self.config, self.pool)[1]
        return speeds.READ + self.step, disk, self.stored / speeds.UPLOAD_RATE / uploading

    @property
    def steps(self) -> int | None:
        """Steps of the run; None if the data's size is not known before it is read."""
        if self.hparams.max_steps is not None:
            return self.hparams.max_steps
        windows = KNOWN_WINDOWS.get(str(mapping(self.config.get("data")).get("train")))
        return windows and math.ceil(windows * self.hparams.epochs / self.hparams.global_batch_size)

    def dollars(self, price: Price, spot: bool) -> float | None:
        """Return the cost of the run's steps, without boots, waits and reclaims (reports plan)."""
        return self.steps and self.steps * self.step / 3600 * self.machines * price.hourly(spot)


def plan(config: dict[str, Any], hparams: StepHParams, pool: Pool, root: Path) -> Planned | None:
    """Plan an experiment; return None if the pool has no known GPU or the model is not known.

    Raises UserError if the layout does not fit the slots, the machines or the model.
    """
    if pool.gpu is None or (model := find_model(config, hparams, root)) is None:
        return None
    return plan_model(config, hparams, pool, model, max(1, slots_of(config)))


def plan_model(
    config: dict[str, Any], hparams: StepHParams, pool: Pool, model: Model, slots: int
) -> Planned:
    """Plan a known model on `slots` slots of a pool with a GPU. Raises UserError as `plan` does."""
    half, length, gpu = hparams.precision != "fp32", hparams.max_seq_length, pool.known_gpu
    grid, layout, window = not (gpu.has_bf16 and half), None, float(length)
    if isinstance(hparams, LmHParams):
        width = pool.slots_per_agent or slots
        layout = choose_layout(parse_layout(hparams.layout), model.config, slots, width)
        memory = split_memory(model.sizes, layout, hparams, grid)
        checkpointing = hparams.activation_checkpointing == "full"
        flops = speeds.causal_token(model.config, length)
        rate = speeds.language_rate(model.sizes, flops, gpu, slots, length, checkpointing)
    else:
        masked = hparams.masked_fraction if isinstance(hparams, PretrainHParams) else 0.0
        memory = replicated(model.sizes, slots, half, grid, masked)
        window *= 1 if masked or not gpu.has_bf16 else speeds.REAL
        flops = speeds.encoder_token(model.config, window, masked)
        rate = speeds.encoder_rate(flops, gpu, slots)
    facts = layout, memory, window, flops, rate, speeds.has_efa(config, pool)
    return Planned(config, hparams, pool, model, slots, *facts)


def faults(planned: Planned) -> Iterator[tuple[str, str]]:
    """Yield each fault: key of the experiment config, and what is wrong and what to do."""
    yield from _memory_faults(planned)
    if planned.layout is None:
        return
    batch, ranks = planned.hparams.global_batch_size, planned.data_ranks
    if batch < ranks:
        problem = f"{batch} windows for {ranks} data ranks ({planned.layout}): some train on"
        cure = f"use {ranks} or more, or a larger layout.tensor"
        yield "hyperparameters.global_batch_size", f"{problem} nothing; {cure}"
    machine, slow = planned.machine, planned.network(False) > planned.compute / 2
    if machine and machine.efa > machine.plain and not planned.efa and slow:
        yield "resources.resource_pool", _no_efa(planned)
    if planned.pool.spot and sum(planned.leaving()) > speeds.NOTICE:
        yield "environment.environment_variables", _too_slow(planned)


def _memory_faults(planned: Planned) -> Iterator[tuple[str, str]]:
    gpu, most, hparams = planned.pool.known_gpu, planned.most, planned.hparams
    where = f"{gpu.gigabytes} GB of a {gpu.name} (modelled)"
    more, budget = "", hparams.max_tokens_per_forward
    if isinstance(hparams, LmHParams) and hparams.activation_checkpointing == "none":
        more = ", or activation_checkpointing: full"
    if most < hparams.max_seq_length:
        key, cure = "hyperparameters.model", "take a smaller model or another GPU"
        if planned.layout is not None:
            key, cure = "hyperparameters.layout", "use more shards or another GPU"
        yield key, f"does not train in {where}; {cure}{more}"
    elif budget != "auto" and budget > most:
        problem = f"{budget} tokens do not fit {where}; use {most // 128 * 128} or less{more}"
        yield "hyperparameters.max_tokens_per_forward", problem


def _no_efa(planned: Planned) -> str:
    return (
        f"{planned.sent / 1e9:.0f} GB leave each machine in a step: {planned.network(False):.1f} s "
        f"on the one plain interface of pool {planned.pool.name!r}, beside {planned.compute:.1f} s "
        f"of compute (modelled), and {planned.network(True):.1f} s with EFA; use machines with "
        "EFA (cluster/efa.md), fewer and larger forwards, or shards inside a machine"
    )


def _too_slow(planned: Planned) -> str:
    step, disk, upload = planned.leaving()
    place, _ = speeds.scratch(planned.config, planned.pool)
    return (
        f"a checkpoint does not fit EC2's two-minute notice: {step:.0f} s to the end of a step, "
        f"{disk:.0f} s to write {planned.stored / 1e9:.1f} GB a machine to {place}, "
        f"{upload:.0f} s to upload it, {step + disk + upload:.0f} s in all (modelled); set TMPDIR "
        "to the instance store (cluster/efa.md), or use more machines"
    )
