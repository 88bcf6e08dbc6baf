"""A profile of one step in a few numbers: launches, time between kernels, the longest kernels.

torch's own table and trace (`hyperparameters.profile_steps`) are for reading; this is for comparing
days. On a GPU only what ran there is recorded, which slows the step little; on a CPU operators
stand for kernels.
"""

import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from benchmarks import measure
from benchmarks.measure import Result

LONGEST = 12  # kernels that are named


class Span(NamedTuple):
    """A kernel or copy on the GPU, or an operator on the CPU; times in microseconds."""

    name: str
    start: float
    end: float


def profile_step(steps: Iterator[object]) -> Result:
    """Run a step to warm up and record the next one."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # it would write its stages to stderr
    next(steps)
    gpu = torch.cuda.is_available()
    measure.now()  # all earlier work is done
    with profile(activities=[ProfilerActivity.CUDA if gpu else ProfilerActivity.CPU]) as recorded:
        next(steps)
        measure.now()
    # Calls of CUDA's runtime are recorded, too: on the CPU. Names of blocks are no kernels.
    place = DeviceType.CUDA if gpu else DeviceType.CPU
    spans = []
    for event in recorded.events():
        if event.device_type == place and not event.is_user_annotation:
            times = event.time_range
            spans.append(Span(name=event.name, start=times.start, end=times.end))
    return summarize_spans(spans)


def summarize_spans(spans: Sequence[Span]) -> Result:
    """Return seconds, launches, gaps and the longest kernels of a step."""
    ordered = sorted(spans, key=lambda span: span.start)
    busy = 0.0
    gaps = []
    end = ordered[0].start
    for span in ordered:
        # Kernels of several streams overlap: only what is new counts.
        if span.start > end:
            gaps.append(span.start - end)
        busy += max(span.end - max(span.start, end), 0.0)
        end = max(end, span.end)

    seconds: dict[str, float] = {}
    calls: dict[str, int] = {}
    for span in ordered:
        seconds[span.name] = seconds.get(span.name, 0.0) + (span.end - span.start) / 1e6
        calls[span.name] = calls.get(span.name, 0) + 1
    longest = sorted(seconds, key=lambda name: -seconds[name])[:LONGEST]
    return {
        "seconds": (end - ordered[0].start) / 1e6,
        "launches": len(ordered),
        "busy_seconds": busy / 1e6,
        "gap_seconds": sum(gaps) / 1e6,
        "longest_gap_seconds": max(gaps, default=0.0) / 1e6,
        "kernels": [
            {"name": name[:120], "calls": calls[name], "seconds": seconds[name]} for name in longest
        ],
    }
