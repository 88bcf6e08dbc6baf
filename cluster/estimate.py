"""Estimates of whether an experiment fits its machines, how long it takes and what it costs.

Memory and traffic are computed from sizes (modelled); speeds name their source (speeds.py).
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cluster import speeds
from cluster.fleet import slots_of
from cluster.machines import MACHINES
from cluster.masterconf import Pool
from cluster.models import Model, find_model
from cluster.prices import Price
from cluster.published import KNOWN_WINDOWS
from cluster.schema import mapping
from detalbert.engine.memory import replicated
from detalbert.settings.hparams import StepHParams
from lm.hparams import LmHParams
from lm.layout import Layout, choose_layout, parse_layout, split_memory
from pretrain.hparams import PretrainHParams


class Planned:
    """An experiment planned on the machines of a pool with a GPU: seconds, and bytes.

    Raises UserError if the layout does not fit the slots, the machines or the model.
    """

    def __init__(
        self, config: dict[str, Any], hparams: StepHParams, pool: Pool, model: Model, slots: int
    ) -> None:
        self.config, self.hparams, self.pool, self.model = config, hparams, pool, model
        self.slots, self.width = slots, pool.slots_per_agent or slots
        self.machines = -(-slots // self.width)
        self.machine, self.efa = MACHINES.get(pool.instance), speeds.has_efa(config, pool)
        gpu, self.half = pool.known_gpu, hparams.precision != "fp32"
        grid = not (gpu.has_bf16 and self.half)
        self.layout: Layout | None = None  # of a sharded model
        # Tokens: on SQuAD the real ones, but all if the rate is of a padded run.
        self.window = float(hparams.max_seq_length)
        if isinstance(hparams, LmHParams):
            keys = parse_layout(hparams.layout)
            self.layout = choose_layout(keys, model.config, slots, self.width)
            self.memory = split_memory(model.sizes, self.layout, hparams, grid)
            self.flops = speeds.causal_token(model.config, hparams.max_seq_length)
            again = hparams.max_seq_length, hparams.activation_checkpointing == "full"
            self.rate = speeds.language_rate(model.sizes, self.flops, gpu, slots, *again)
        else:
            masked = hparams.masked_fraction if isinstance(hparams, PretrainHParams) else 0.0
            self.memory = replicated(model.sizes, slots, self.half, grid, masked)
            self.window *= 1 if masked or not gpu.has_bf16 else speeds.REAL
            self.flops = speeds.encoder_token(model.config, self.window, masked)
            self.rate = speeds.encoder_rate(self.flops, gpu, slots)
        # Tokens of the largest forward pass that fits, and of the configured one.
        self.most = self.memory.tokens(gpu.gigabytes)
        budget = hparams.max_tokens_per_forward
        self.tokens = min(self.most, 32_768) if budget == "auto" else budget
        self._plan_step()

    def _plan_step(self) -> None:
        """Set what a data rank does in a step, and how long a step takes."""
        batch, layout, sizes = self.hparams.global_batch_size, self.layout, self.model.sizes
        self.data_ranks = self.slots if layout is None else layout.data_ranks
        share = -(-batch // self.data_ranks) * self.window
        self.forwards = max(1, math.ceil(share / max(1, self.tokens)))  # per data rank
        number = 4 - 2 * self.half  # bytes
        # Seconds without the network between machines.
        self.compute = batch * self.window / self.slots / self.rate.tokens
        if layout is not None and layout.tensor > 1 and self.machine:
            # In every layer tensor-parallel ranks sum the hidden state four times, forward and
            # backward (Shoeybi 2019, section 3), in a ring between GPUs.
            sums = sizes.layers * 4 * 2 * (layout.tensor - 1) / layout.tensor
            sent = sums * sizes.hidden * number * batch * self.window / self.data_ranks
            self.compute += sent / (self.machine.link * 1e9)
        shards = 1 if layout is None else layout.shard * layout.tensor
        widths = number, 4 if self.hparams.allreduce_dtype == "fp32" else 2
        machines = self.machines, max(1, shards // self.width)
        # Bytes that each machine sends.
        self.sent = speeds.sent_bytes(sizes.parameters, *machines, self.forwards, *widths)
        # FSDP overlaps network and compute.
        self.step = max(self.compute, self.network(self.efa))
        # Bytes that one machine writes per checkpoint: weights and two moments.
        self.stored = 12 * sizes.parameters / (1 if layout is None else self.machines)

    def network(self, efa: bool) -> float:
        """Return the seconds of network traffic per step; 0 if the machines' rate is not known."""
        gbits = self.machine and (self.machine.efa if efa else self.machine.plain)
        return self.sent / (gbits / 8 * 1e9) if gbits else 0.0

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

    Raises UserError as Planned does.
    """
    if pool.gpu is None or (model := find_model(config, hparams, root)) is None:
        return None
    return Planned(config, hparams, pool, model, max(1, slots_of(config)))


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
