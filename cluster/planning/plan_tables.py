"""The tables behind an option: memory, time, shards, bill and layouts, each figure with its source.

Cells are texts, or numbers that every form shows as they are: a terminal, a page and JSON have one
set of rows, and no form rounds in its own way.
"""

import math
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from cluster.estimates.estimate import Estimate, ranked_layouts
from cluster.estimates.times import CORES, TimePart, time_parts, writing_hours
from cluster.facts.spot import BOOT_SECONDS
from cluster.planning.options import Option, layout_keys
from detalbert.engine.memory import HEAD_CHUNK, OVERHEAD

GIB = 2**30
LAYOUTS = 3  # that are shown
# Columns of numbers, of these and of the tables of options.
NUMBERS = (
    "slots",
    "hours",
    "dollars",
    "figure",
    "machines",
    "$/h",
    "reclaims",
    "waiting h",
)
Row: TypeAlias = dict[str, object]


def tables(option: Option) -> dict[str, list[Row]]:
    """Return the tables behind an option; an empty one where nothing is known or to choose."""
    estimate = option.estimate
    return {
        "memory": memory_rows(estimate) if estimate else [],
        "time": time_rows(estimate) if estimate else [],
        "shards": shard_rows(estimate) if estimate else [],
        "bill": bill_rows(option),
        "layouts": layout_rows(estimate) if estimate else [],
    }


def memory_rows(estimate: Estimate) -> list[Row]:
    """Return the memory of a GPU by part, and the largest forward pass that fits."""
    memory = estimate.demand.memory
    sold = estimate.gpu.gigabytes
    length = estimate.hparams.max_seq_length
    tokens = estimate.tokens
    activations = f"{tokens:,} tokens of {memory.per_token / 1e6:.3f} MB"
    parts = [  # name, bytes, how they come about
        ("states", memory.states, "weights, gradients, two moments"),
        ("gathered", memory.gathered, "embeddings, head, one layer and the next"),
        ("activations", tokens * memory.per_token, activations),
        ("logits", memory.head, f"of {HEAD_CHUNK:,} tokens at a time"),
        ("overhead", OVERHEAD, "CUDA, NCCL, fragmentation"),
        ("of a GPU", estimate.needed, f"of {sold} GB, {estimate.needed / GIB / sold:.0%}"),
    ]
    rows = [figure(name, _gib(size), how=how) for name, size, how in parts if size]
    largest = figure(
        "largest forward",
        value=f"{max(0, estimate.max_tokens):,} tokens",
        how=f"{estimate.max_tokens // length} windows of {length:,}",
    )
    return [*rows, largest]


def time_rows(estimate: Estimate) -> list[Row]:
    """Return the time by part, and what a step and a machine's end take."""
    boot = TimePart(
        "boot and image",
        seconds=BOOT_SECONDS,
        source="assumed",
        how="of all machines, at each launch",
    )
    rows = [
        figure(part.name, f"{part.seconds / 3600:,.2f} h", source=part.source, how=part.how)
        for part in [boot, *time_parts(estimate)]
    ]
    return [*rows, *_rate_rows(estimate)]


def _rate_rows(estimate: Estimate) -> Iterator[Row]:
    """Yield the rows on speed, on traffic between machines and on the end of a spot machine."""
    rate = estimate.rate
    step = estimate.step
    checkpoint = estimate.checkpoint
    windows = estimate.hparams.global_batch_size / step.seconds
    # Tokens a second of all slots at the low, middle and high speed.
    middle = estimate.step_tokens / step.seconds
    tokens = [middle * speed / rate.tokens for speed in (rate.low, rate.tokens, rate.high)]
    yield figure(
        "tokens/s",
        value=span(tokens, form="{:,.0f}"),
        source=rate.source,
        how=f"{windows:,.1f} windows/s, {estimate.forwards} forward(s) a slot and step",
    )
    if estimate.machine and estimate.machines > 1:
        interface = "EFA" if step.has_efa else "one plain interface"
        yield figure(
            "network a step",
            value=f"{step.between:.2f} s",
            how=f"{step.sent / 1e9:.1f} GB a machine by {interface}",
        )
    yield figure(
        "leaving with notice",
        value=f"{estimate.seconds_after_notice:.0f} s",
        how=f"of 120 s of notice: the step, {checkpoint.disk:.0f} s on disk, "
        f"{checkpoint.upload:.0f} s of upload",
    )


def shard_rows(estimate: Estimate) -> list[Row]:
    """Return the time in which N machines write the shards before the run; empty if that is short
    or the text is in shards.
    """
    rows = []
    for machines, hours in writing_hours(estimate).items():
        row: Row = {"machines": machines, "hours": f"{hours:,.2f}", "source": "measured"}
        row["how"] = f"{CORES} cores each; python -m detalbert.corpus --part I/{machines}"
        rows.append(row)
    return rows


def bill_rows(option: Option) -> list[Row]:
    """Return the bill of the three cases of the spot market: means, nine of ten runs behind them.

    An option's own range goes from the least to the greatest figure of all cases.
    """
    rows = []
    for case in option.cases:
        figures = case.figures
        row: Row = {
            "case": case.name,
            "machines": option.all_machines,
            "reclaims": f"{figures['reclaims']:,.2f}",
            "waiting h": f"{figures['waiting h']:,.2f}",
            "hours": span(case.range("hours"), form="{:,.2f}", unit=" h"),
        }
        if option.price:
            row["$/h"] = f"{case.hourly:,.2f}"
            row["cost"] = span(case.range("cost"), form="${:,.2f}")
        rows.append(row)
    return rows


def layout_rows(estimate: Estimate) -> list[Row]:
    """Return a row for each of the fastest layouts; empty unless the model is sharded."""
    if not estimate.demand.layout:
        return []
    rows = []
    for layout in ranked_layouts(estimate)[:LAYOUTS]:
        keys = layout_keys(layout)
        rows.append(
            {
                **keys["layout"],
                "checkpointing": keys["activation_checkpointing"],
                "tokens a forward": layout.tokens,
                "GiB": round(layout.needed / GIB, 1),
                "step s": round(layout.step.seconds, 2),
                "tokens/s": round(layout.step_tokens / layout.step.seconds),
            }
        )
    return rows


def figure(name: str, value: str, source: str = "modelled", how: str = "") -> Row:
    """Return a row with a figure, its source and how it was computed."""
    return {"what": name, "figure": value, "source": source, "how": how}


def span(figures: Sequence[float], form: str, unit: str = "") -> str:
    """Return a figure with its range: "0.75 h (0.44 to 17.70)"."""
    texts = [form.format(value) if math.isfinite(value) else "no end" for value in figures]
    low, middle, high = texts
    if low == high:
        return f"{middle}{unit}"
    return f"{middle}{unit} ({low} to {high})"


def _gib(value: float) -> str:
    return f"{value / GIB:.1f} GiB" if math.isfinite(value) else "none"
