"""A profile of one step in a few numbers: launches, idle time, the longest kernels.

torch's own table and trace (`hyperparameters.profile_steps`) are for reading; this is for comparing
days. On a GPU only what ran there is recorded, which slows the step little; on a CPU operators
stand for kernels.
"""

import os
from collections import Counter
from collections.abc import Iterable, Iterator

import torch
from torch.autograd import DeviceType
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile

from benchmarks import measure
from benchmarks.measure import Result

LONGEST = 12  # kernels that are named


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
    return summarize_events(
        event
        for event in recorded.events()
        if event.device_type == place and not event.is_user_annotation
    )


def summarize_events(events: Iterable[FunctionEvent]) -> Result:
    """Return seconds, launches and longest kernels of a step, and how long nothing ran."""
    seconds: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    idle = 0.0
    ordered = sorted(events, key=lambda event: event.time_range.start)
    if not ordered:  # without CUPTI torch records nothing of a GPU
        return {}
    begin = end = ordered[0].time_range.start  # microseconds
    for event in ordered:
        times = event.time_range
        seconds[event.name] += times.elapsed_us() / 1e6
        calls[event.name] += 1
        # Kernels of several streams overlap.
        idle += max(times.start - end, 0)
        end = max(end, times.end)
    return {
        "seconds": (end - begin) / 1e6,
        "launches": len(ordered),
        "idle_seconds": idle / 1e6,
        "kernels": [
            {"name": name[:120], "calls": calls[name], "seconds": total}
            for name, total in seconds.most_common(LONGEST)
        ],
    }
