"""The time of a run by its parts, each with its source.

The parts are added up as if one began when the other ended; what overlaps, such as traffic beside
compute, counts with what it takes longer. Reclaims come on top, in planning/cases.py.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

from cluster.configs.values import mapping
from cluster.estimates.estimate import Estimate
from detalbert.errors import UserError
from detalbert.settings.hparams import Length

# Seconds until the first step has compiled its layers: benchmarks/results/step-h100.json.
COMPILING = 12.3
# Windows per second and core of this package's tokenizer (20,333 on two cores) and loader (24,056
# for pretraining on 16; SQuAD's was faster): docs/speed.md.
TOKENIZING = 10_000
LOADING = 1_500
CORES = 8
# Bytes of text per second and core that become token shards, and per token, English. Measured on a
# shared AMD EPYC: 7.7 MB/s on two cores (docs/speed.md, 2026-11-21), and by itself 105 MB in 20.5
# seconds of a core, 5.1 MB/s (2026-11-27); the lower one counts.
TEXT_BYTES_PER_SECOND = 3.8e6
TEXT_BYTES_PER_TOKEN = 4.5
LONG_SECONDS = 600  # for which GPUs wait for text: longer ones are worth a separate command
STARTING = ("start of the container", "compilation", "tokenizing")  # before the first step
START = 60.0  # seconds from the container to the first batch; assumed


class TimePart(NamedTuple):
    """A part of a run's time."""

    name: str
    seconds: float
    source: str  # published, measured, modelled or assumed
    how: str = ""


def time_parts(estimate: Estimate) -> list[TimePart]:
    """Return the parts of a run's time.

    Raises:
        UserError: if its number of steps is not known.
    """
    length = estimate.job.length
    if length is None:
        raise UserError(
            "its data must be read to know how long it is",
            key="hyperparameters.max_steps",
            cure="give --windows or --tokens",
        )
    parts = [TimePart("start of the container", seconds=START, source="assumed")]
    if estimate.hparams.compile is not False:
        compilation = TimePart(
            "compilation",
            seconds=COMPILING,
            source="measured",
            how="the first step, on an H100",
        )
        parts.append(compilation)
    parts += _tokenizing(estimate, length.steps)
    parts += _steps(estimate, length.steps)
    parts += _validations(estimate, length)
    parts.append(_checkpoints(estimate, length))
    return parts


def _steps(estimate: Estimate, steps: int) -> Iterator[TimePart]:
    """Yield the products of all steps, and what these wait for."""
    step = estimate.step
    rate = estimate.rate
    batch = estimate.hparams.global_batch_size
    yield TimePart(
        "training",
        seconds=steps * step.compute,
        source=rate.source,
        how=f"{steps:,} steps of {batch:,} windows; {rate.how}",
    )

    # Products, sums and traffic run at the same time: each counts with what it takes longer.
    yield TimePart(
        "all-reduce in a machine",
        seconds=steps * max(0.0, step.inside - step.compute),
        source="modelled",
        how=f"{step.inside:.3f} s a step, beside the products",
    )
    yield TimePart(
        "network between machines",
        seconds=steps * max(0.0, step.between - max(step.compute, step.inside)),
        source="modelled",
        how=f"{step.between:.2f} s a step, beside the products",
    )

    # Windows a second that a slot trains on, and that its cores load.
    trained = batch / step.seconds / estimate.slots.number
    loaded = LOADING * CORES
    yield TimePart(
        "loader",
        seconds=steps * step.seconds * max(0.0, trained / loaded - 1),
        source="measured",
        how=f"{trained:,.1f} windows/s a slot of {loaded:,} that {CORES} cores load",
    )


def _tokenizing(estimate: Estimate, steps: int) -> Iterator[TimePart]:
    """Yield the time in which each machine makes windows or token shards before it trains."""
    windows = estimate.job.size.training
    data = mapping(estimate.job.config.get("data"))
    if "train" in data and windows:
        yield TimePart(
            "tokenizing",
            seconds=windows / TOKENIZING / CORES,
            source="measured",
            how=f"{windows:,} windows, {TOKENIZING:,} a second and core",
        )
    elif _is_text(estimate):
        tokens = _text_tokens(estimate, steps)
        text_gigabytes = tokens * TEXT_BYTES_PER_TOKEN / 1e9

        # Shards hold each token in two bytes if the vocabulary allows it.
        bytes_per_token = 2 if estimate.model.config.vocab_size <= 1 << 16 else 4
        shard_gigabytes = tokens * bytes_per_token / 1e9
        rate = TEXT_BYTES_PER_SECOND / 1e6
        how = f"at most {text_gigabytes:,.1f} GB of text, {rate} MB/s a core; "
        how += f"{shard_gigabytes:,.1f} GB of shards on each machine"
        if writing_hours(estimate):
            how += "; write them first (python -m detalbert.corpus) and set data.shards"
        seconds = _writing_seconds(estimate, steps)
        yield TimePart("tokenizing", seconds=seconds, source="measured", how=how)


def writing_hours(estimate: Estimate) -> dict[int, float]:
    """Return the hours in which 1, 2, 4 and 8 machines write a corpus' shards, each a part; {} if
    there is no text to write, or if it takes less than LONG_SECONDS on one.
    """
    steps = estimate.job.steps
    if steps is None or not _is_text(estimate):
        return {}
    seconds = _writing_seconds(estimate, steps)
    if seconds <= LONG_SECONDS:
        return {}
    return {machines: seconds / machines / 3600 for machines in (1, 2, 4, 8)}


def _is_text(estimate: Estimate) -> bool:
    """Return whether the data is text that is not yet in shards."""
    data = mapping(estimate.job.config.get("data"))
    return bool(data.get("documents") or data.get("text"))


def _text_tokens(estimate: Estimate, steps: int) -> int:
    """Return the most tokens that the text of a run can have: each trained on once."""
    hparams = estimate.hparams
    return steps * hparams.global_batch_size * hparams.max_seq_length


def _writing_seconds(estimate: Estimate, steps: int) -> float:
    """Return the seconds in which one machine writes the shards of a run's text."""
    text_bytes = _text_tokens(estimate, steps) * TEXT_BYTES_PER_TOKEN
    return text_bytes / TEXT_BYTES_PER_SECOND / CORES


def _validations(estimate: Estimate, length: Length) -> Iterator[TimePart]:
    """Yield the time of the validations, if it is known of how many windows."""
    windows = estimate.job.validation_windows
    if windows is not None:
        initial = bool(estimate.job.config.get("perform_initial_validation"))
        count = length.validations + initial
        tokens = count * windows * estimate.demand.window
        # A backward pass takes twice the FLOPs of the forward pass, and a validation has none.
        yield TimePart(
            "validation",
            seconds=tokens / 3 / estimate.rate.tokens / estimate.slots.number,
            source=estimate.rate.source,
            how=f"{count} of {windows:,} windows, a third of training's FLOPs",
        )


def _checkpoints(estimate: Estimate, length: Length) -> TimePart:
    checkpoint = estimate.checkpoint
    policy = estimate.job.config.get("checkpoint_policy") or "best"
    count = count_checkpoints(length, policy)
    size = f"{checkpoint.stored / 1e9:.1f} GB a machine, {checkpoint.seconds:.0f} s each"
    return TimePart(
        "checkpoints",
        seconds=count * checkpoint.seconds,
        source="modelled",
        how=f"at most {count:,} of {size}",
    )


def count_checkpoints(length: Length, policy: str) -> int:
    """Return the checkpoints of a run: after each period, the last step, and each validation of
    which `checkpoint_policy` takes one, if each is better than those before.
    """
    last = length.steps
    count = math.ceil(last / length.checkpoint)
    if policy == "none":
        return count
    both = math.lcm(length.validation, length.checkpoint)
    count += last // length.validation - last // both
    # The last step has its checkpoint already.
    return count - (last % length.validation == 0 and last % length.checkpoint > 0)


def periodic_checkpoints(estimate: Estimate, length: Length) -> float:
    """Return the seconds of the checkpoints after each period; others come after validations."""
    periods = math.ceil(length.steps / length.checkpoint)
    return periods * estimate.checkpoint.seconds
