"""Estimates of a job on its pool's machines: memory of a GPU, time of a step and of the run.

Memory and traffic are computed from sizes (modelled); speeds name their source (speeds.py).
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from cluster.estimates import speeds, traffic
from cluster.estimates.job import Job
from cluster.estimates.models import Model, find_model
from cluster.facts import spot
from cluster.facts.machines import MACHINES
from detalbert.engine.memory import replicated
from detalbert.errors import UserError
from detalbert.settings.hparams import Length
from detalbert.settings.schema import Finding, mapping
from lm.hparams import Layout, LmHParams
from lm.layout import choose_layout, split_memory
from pretrain.hparams import PretrainHParams

# Seconds until the first step has compiled its layers: benchmarks/results/step-h100.json.
COMPILING = 12.3
# Windows per second and core of this package's tokenizer (20,333 on two cores) and loader (24,056
# for pretraining on 16; SQuAD's was faster): docs/speed.md.
TOKENIZING, LOADING, CORES = 10_000, 1_500, 8
# Bytes of text per second and core that become token shards, and per token: docs/speed.md (7.7 MB/s
# on two cores), English.
TEXT_RATE, TEXT = 3.8e6, 4.5
LONG = 600  # seconds of GPUs that wait for text
START = 60.0  # seconds from the container to the first batch; assumed


class TimePart(NamedTuple):
    """A part of a run's time."""

    name: str
    seconds: float
    source: str  # published, measured, modelled or assumed
    how: str = ""


class Estimate:
    """A job estimated on a pool with a GPU: seconds, and bytes.

    Raises UserError if the layout does not fit the slots, the machines or the model.
    """

    def __init__(self, job: Job, model: Model) -> None:
        assert job.pool is not None and job.pool.gpu is not None
        self.job, self.model, self.pool, self.hparams = job, model, job.pool, job.hparams
        self.gpu = gpu = job.pool.gpu
        self.slots, self.width = job.slots, self.pool.slots_per_agent or job.slots
        self.machines = -(-self.slots // self.width)
        self.machine = MACHINES.get(self.pool.instance)
        self.efa = traffic.has_efa(job.config, self.pool)
        hparams, half = self.hparams, job.hparams.precision != "fp32"
        grid, length = not (gpu.has_bf16 and half), hparams.max_seq_length
        self.layout: Layout | None = None  # of a sharded model
        # Tokens: on SQuAD the real ones, but all if the rate is of a padded run.
        self.window, self.task, recomputed = float(length), "fine-tuning", 0.0
        if isinstance(hparams, LmHParams):
            self.task = "language"
            self.layout = choose_layout(hparams.layout, model.config, self.slots, self.width)
            self.memory = split_memory(model.sizes, self.layout, hparams, grid)
            self.flops = speeds.causal_token(model.config, length)
            recomputed = hparams.recomputed
        else:
            masked = hparams.masked_fraction if isinstance(hparams, PretrainHParams) else 0.0
            self.task = "pretraining" if masked else self.task
            self.memory = replicated(model.sizes, self.slots, half, grid, masked)
            self.window *= 1 if masked or not gpu.has_bf16 else speeds.REAL
            self.flops = speeds.encoder_token(model.config, self.window, masked)
        # Tokens of the largest forward pass that fits, and of the configured one.
        self.most = self.memory.tokens(gpu.gigabytes)
        budget = hparams.max_tokens_per_forward
        self.tokens = min(self.most, 32_768) if budget == "auto" else budget
        self.needed = self.memory.at(self.tokens)  # bytes of a GPU
        self.data_ranks = self.slots if self.layout is None else self.layout.data_ranks
        share = -(-hparams.global_batch_size // self.data_ranks) * self.window
        self.forwards = max(1, math.ceil(share / max(1, self.tokens)))  # per data rank
        # An encoder's layers are compiled by default; published runs on older GPUs were not.
        self.compiled = hparams.compile is not False
        known = (self.slots, int(min(share, max(1, self.tokens))), self.compiled, recomputed)
        shape = speeds.Shape(self.task, self.flops, gpu.name, gpu.has_bf16, gpu.gigabytes, *known)
        self.rate = speeds.speed(shape, gpu)
        self._set_step(2 if half else 4, 4 if hparams.allreduce_dtype == "fp32" else 2)

    def _set_step(self, number: int, wire: int) -> None:
        """Set what the machines send and how long a step takes.

        Args:
            number: bytes of a number in products.
            wire: bytes of a number of a gradient that is sent.
        """
        layout, sizes, batch = self.layout, self.model.sizes, self.hparams.global_batch_size
        tokens = self.step_tokens = batch * self.window
        # Seconds of products, and of sums between the GPUs of a machine.
        self.compute, self.inside = tokens / self.slots / self.rate.tokens, 0.0
        link = self.machine.link * 1e9 if self.machine else math.inf
        shards = 1
        if layout is None:  # a ring sends gradients twice
            peers = min(self.slots, self.width)
            self.inside = 2 * (peers - 1) / peers * sizes.parameters * wire / link
        else:
            # In every layer tensor-parallel ranks sum the hidden state four times, forward and
            # backward (Shoeybi 2019, section 3), in a ring between GPUs; products wait for sums.
            sums = sizes.layers * 4 * 2 * (layout.tensor - 1) / layout.tensor
            self.compute += sums * sizes.hidden * number * tokens / self.data_ranks / link
            shards = layout.shard * layout.tensor
        # Bytes that each machine sends; only tensor-parallel sums do not overlap with products.
        machines = self.machines, max(1, shards // self.width)
        self.sent = traffic.sent_bytes(sizes.parameters, *machines, self.forwards, number, wire)
        self.step = max(self.compute, self.inside, self.network(self.efa))
        # Bytes that one machine writes per checkpoint: weights and two moments.
        self.stored = 12 * sizes.parameters / (1 if layout is None else self.machines)
        # Seconds for which training waits until a checkpoint is written and uploaded.
        self.checkpoint = sum(self.leaving()[1:])
        # Steps between checkpoints; None: an epoch, whose size is not known.
        self.period = self.hparams.checkpoint_period
        if self.job.size.training is not None:
            self.period = self.hparams.length(self.job.size.training).checkpoint

    def changed(self, **keys: Any) -> "Estimate":
        """Return the estimate of the same job with other hyperparameters."""
        hparams = dataclasses.replace(self.hparams, **keys)
        return Estimate(self.job._replace(hparams=hparams), self.model)

    def network(self, efa: bool) -> float:
        """Return the seconds of network traffic per step; 0 if the machines' rate is not known."""
        gbits = self.machine and (self.machine.efa if efa else self.machine.plain)
        return self.sent / (gbits / 8 * 1e9) if gbits else 0.0

    def leaving(self) -> tuple[float, float, float]:
        """Return the seconds to finish the step, to write and to upload, after a notice."""
        uploading = 1 if self.layout is None else self.width
        disk = self.stored / traffic.scratch(self.job.config, self.pool)[1]
        return traffic.READ + self.step, disk, self.stored / traffic.UPLOAD_RATE / uploading

    def parts(self) -> Iterator[TimePart]:
        """Yield the parts of the run's time; UserError if its number of steps is not known."""
        batch, rate, length = self.hparams.global_batch_size, self.rate, self.job.length
        if length is None:
            said = "its data must be read to know how long it is; give --windows or --tokens"
            raise UserError(f"hyperparameters.max_steps: {said}")
        steps = length.steps
        yield TimePart("start of the container", START, "assumed")
        if self.compiled:
            yield TimePart("compilation", COMPILING, "measured", "the first step, on an H100")
        yield from self._tokenizing(steps)
        how = f"{steps:,} steps of {batch:,} windows; {rate.how}"
        yield TimePart("training", steps * self.compute, rate.source, how)
        between, beside = self.network(self.efa), "s a step, beside the products"
        waits = max(0.0, self.inside - self.compute) * steps
        how = f"{self.inside:.3f} {beside}"
        yield TimePart("all-reduce in a machine", waits, "modelled", how)
        waits = max(0.0, between - max(self.compute, self.inside)) * steps
        yield TimePart("network between machines", waits, "modelled", f"{between:.2f} {beside}")
        need, most = batch / self.step / self.slots, LOADING * CORES
        how = f"{need:,.1f} windows/s a slot of {most:,} that {CORES} cores load"
        waits = max(0.0, need / most - 1) * steps * self.step
        yield TimePart("loader", waits, "measured", how)
        yield from self._validations(length)
        size = f"{self.stored / 1e9:.1f} GB a machine, {self.checkpoint:.0f} s each"
        count = length.checkpoints(self.job.config.get("checkpoint_policy") or "best")
        seconds = count * self.checkpoint
        yield TimePart("checkpoints", seconds, "modelled", f"at most {count:,} of {size}")

    def _tokenizing(self, steps: int) -> Iterator[TimePart]:
        """Yield the time in which each machine makes windows or token shards before it trains."""
        data, windows = mapping(self.job.config.get("data")), self.job.size.training
        if "train" in data and windows:
            how = f"{windows:,} windows, {TOKENIZING:,} a second and core"
            yield TimePart("tokenizing", windows / TOKENIZING / CORES, "measured", how)
        elif data.get("documents") or data.get("text"):
            tokens = steps * self.hparams.global_batch_size * self.hparams.max_seq_length
            seconds = tokens * TEXT / TEXT_RATE / CORES
            width = 2 if self.model.config.vocab_size <= 1 << 16 else 4
            how = f"at most {tokens * TEXT / 1e9:,.1f} GB of text, {TEXT_RATE / 1e6} MB/s a core; "
            how += f"{tokens * width / 1e9:,.1f} GB of shards on each machine"
            if seconds > LONG:
                how += "; write them first (python -m detalbert.corpus) and set data.shards"
            yield TimePart("tokenizing", seconds, "measured", how)

    def _validations(self, length: Length) -> Iterator[TimePart]:
        """Yield the time of the validations, if it is known of how many windows."""
        windows = self.job.validation_windows
        if windows is not None:
            initial = bool(self.job.config.get("perform_initial_validation"))
            count = length.validations + initial
            seconds = count * windows * self.window / 3 / self.rate.tokens / self.slots
            how = f"{count} of {windows:,} windows, a third of training's FLOPs"
            yield TimePart("validation", seconds, self.rate.source, how)


def estimate(job: Job) -> Estimate | None:
    """Estimate a job; return None if the pool has no known GPU or the model is not known.

    Raises UserError as Estimate does.
    """
    if job.pool is None or job.pool.gpu is None:
        return None
    model = find_model(job.config, job.hparams, job.root)
    return None if model is None else Estimate(job, model)


def find_faults(found: Estimate) -> Iterator[Finding]:
    """Yield what is wrong with an estimate, by key of the experiment config."""
    yield from _memory_faults(found)
    if found.layout is None:
        return
    batch, ranks = found.hparams.global_batch_size, found.data_ranks
    if batch < ranks:
        problem = f"{batch} windows for {ranks} data ranks ({found.layout}): some train on"
        cure = f"use {ranks} or more, or a larger layout.tensor"
        yield Finding("hyperparameters.global_batch_size", f"{problem} nothing; {cure}")
    machine, plain, efa = found.machine, found.network(False), found.network(True)
    if machine and machine.efa > machine.plain and not found.efa and plain > found.compute / 2:
        yield Finding(
            "resources.resource_pool",
            f"{found.sent / 1e9:.0f} GB leave each machine in a step: {plain:.1f} s on the one "
            f"plain interface of pool {found.pool.name!r}, beside {found.compute:.1f} s of compute "
            f"(modelled), and {efa:.1f} s with EFA; use machines with EFA (cluster/efa.md), fewer "
            "and larger forwards, or shards inside a machine",
        )
    (step, disk, upload), place = found.leaving(), traffic.scratch(found.job.config, found.pool)[0]
    if found.pool.spot and step + disk + upload > spot.NOTICE_SECONDS:
        yield Finding(
            "environment.environment_variables",
            f"a checkpoint does not fit EC2's two-minute notice: {step:.0f} s to the end of a "
            f"step, {disk:.0f} s to write {found.stored / 1e9:.1f} GB a machine to {place}, "
            f"{upload:.0f} s to upload it, {step + disk + upload:.0f} s in all (modelled); set "
            "TMPDIR to the instance store (cluster/efa.md), or use more machines",
        )


def _memory_faults(found: Estimate) -> Iterator[Finding]:
    gpu, most, hparams = found.gpu, found.most, found.hparams
    where = f"{gpu.gigabytes} GB of a {gpu.name} (modelled)"
    more, budget = "", hparams.max_tokens_per_forward
    if isinstance(hparams, LmHParams) and hparams.recomputed < 1:
        more = ", or activation_checkpointing: full"
    if most < hparams.max_seq_length:
        key, cure = "hyperparameters.model", "take a smaller model or another GPU"
        if found.layout is not None:
            key, cure = "hyperparameters.layout", "use more shards or another GPU"
        yield Finding(key, f"does not train in {where}; {cure}{more}")
    elif budget != "auto" and budget > most:
        problem = f"{budget} tokens do not fit {where}; use {most // 128 * 128} or less{more}"
        yield Finding("hyperparameters.max_tokens_per_forward", problem)
