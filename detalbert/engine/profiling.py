"""`hyperparameters.profile_steps`: a trace of some steps of rank 0, and where their time went.

Determined's own `context.set_profiler` starts and stops torch's profiler around each `train_batch`:
a trace for every step, and the wait for the loader in none. Here it runs from the end of one step
to the end of another. The trace is among TensorBoard's files, so a cluster uploads it with them.
"""

import contextlib
import json
import logging
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from determined import pytorch
from torch.profiler import ProfilerActivity, profile, record_function

from detalbert.errors import UserError

log = logging.getLogger(__name__)
WARM_UP = 3  # steps before it: loaders start, buffers are made
_LOADER = "enumerate(DataLoader)"  # torch's own mark
_SHARDED = "all_gather", "reduce_scatter"
_DEVICE = {"kernel", "gpu_memcpy", "gpu_memset"}
Times = np.ndarray  # float64 [n, 2]: begin and end of each, microseconds


class StepProfile(pytorch.PyTorchCallback):
    """Records `steps` steps after the warm-up, writes the trace and prints one line.

    Args: steps: 0 for none; left: that this process has before it; folder: for the trace.
    """

    def __init__(self, steps: int, left: int, folder: Path, device: torch.device) -> None:
        self.steps, self.folder, self.device = steps, folder, device
        self.done = 0
        self.running: Any = None
        if steps and left < WARM_UP + steps:
            self.steps = 0
            log.info("no profile: %d steps are left, %d are needed", left, WARM_UP + steps)

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Around every optimizer step."""
        with self.mark("step"):
            yield
        self.done += 1
        if self.steps and self.done == WARM_UP:
            self._start()
        elif self.running is not None and self.done == WARM_UP + self.steps:
            self._finish()

    def mark(self, name: str) -> contextlib.AbstractContextManager[Any]:
        """Names what runs inside, in the trace; nothing where there is none."""
        return contextlib.nullcontext() if self.running is None else record_function(name)

    def on_training_workload_end(self, **_: Any) -> None:
        """A report, and maybe a validation and a checkpoint: their time is no step's."""
        with self.mark("report"):
            pass

    def on_trial_shutdown(self) -> None:
        if self.running is not None:  # the run was stopped
            self.running.stop()

    def _start(self) -> None:
        os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # it would write its stages to stderr
        activities = [ProfilerActivity.CPU]
        if self.device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
            torch.cuda.synchronize(self.device)
        self.running = profile(activities=activities)
        self.running.start()

    def _finish(self) -> None:
        with self.mark("device"):  # what the steps have launched belongs to them
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
        self.running.stop()
        name = f"{socket.gethostname()}_{os.getpid()}.{time.time_ns()}.pt.trace.json"
        path = self.folder / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self.running.export_chrome_trace(str(path))
            events = json.loads(path.read_text())["traceEvents"]
        except (OSError, ValueError, RuntimeError) as error:
            raise UserError(
                f"hyperparameters.profile_steps: {path}: cannot write the trace ({error}); free "
                "space there, or set it to 0"
            ) from None
        self.running = None
        log.info("%s; trace: %s", describe(summarize(events)), path)


def summarize(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Milliseconds a step of a trace: `wall` of it `busy`, `loader` and `all_reduce`; of a sharded
    model `all_gather` and `reduce_scatter` too.

    `busy` is the device's: kernels and copies, but for NCCL's kernels, which are the exchange with
    the wait for other slots; on a CPU, operators, but for those of the loader and the exchange.
    A sharded model's GPU does both at a time, so what overlaps counts in both there.
    """
    spans = [event for event in events if event.get("ph") == "X"]
    marks = [event for event in spans if event.get("cat") == "user_annotation"]
    steps = _times([event for event in marks if event["name"] == "step"])
    waits = _times([event for event in marks if event["name"].startswith(_LOADER)])
    waits = waits[np.searchsorted(waits[:, 1], steps[:, 0], side="right") - 1]  # before each step
    reports = _times([event for event in marks if event["name"] == "report"])[:, 0]
    device = _times([event for event in marks if event["name"] == "device"])
    windows = _windows(steps, waits, reports, device[-1, 1])
    kernels = [event for event in spans if event.get("cat") in _DEVICE]
    exchange = _exchange(spans, marks, kernels)
    every = np.concatenate(list(exchange.values()))
    if not kernels:
        busy, outside = _times([e for e in spans if e.get("cat") == "cpu_op"]), [waits, every]
    elif len(exchange) > 1:
        busy, outside = _times([e for e in kernels if not _is_nccl(e)]), []
    else:
        busy, outside = _times(kernels), [every]
    outside = np.concatenate([np.zeros((0, 2)), *outside])
    wall = sum(end - begin for begin, end in windows)
    parts = {
        "wall": wall,
        "busy": _covered(np.concatenate([busy, outside]), windows) - _covered(outside, windows),
        "loader": float((waits[:, 1] - waits[:, 0]).sum()),
        **{name: _covered(times, windows) for name, times in exchange.items()},
    }
    each = {name: value / 1000 / len(steps) for name, value in parts.items()}
    return {"steps": len(steps), "device": "GPU" if kernels else "CPU operators", **each}


def _exchange(
    spans: list[dict[str, Any]], marks: list[dict[str, Any]], kernels: list[dict[str, Any]]
) -> dict[str, Times]:
    """What slots exchange, by kind: "all_reduce", and others where FSDP does them."""
    sharded = any(event["name"].startswith("FSDP::") for event in marks)
    if kernels:
        found = [(event["name"], event) for event in kernels if _is_nccl(event)]
    elif sharded:
        found = _of_gloo(spans)
    else:
        found = [("", event) for event in marks if event["name"] == "all_reduce"]
    kinds: dict[str, list[dict[str, Any]]] = {"all_reduce": []}
    for name, event in found:
        bare = name.lower().replace("_", "")  # ncclDevKernel_AllGather_RING_LL, c10d::allgather_
        others = [kind for kind in _SHARDED if sharded and kind.replace("_", "") in bare]
        kinds.setdefault([*others, "all_reduce"][0], []).append(event)
    return {kind: _times(events) for kind, events in kinds.items()}


def _is_nccl(kernel: dict[str, Any]) -> bool:
    return "nccl" in kernel["name"].lower()


def _of_gloo(spans: list[dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    """The work of gloo's threads, each with the call that it does: gloo reduces and scatters by an
    all-reduce, and says so. A process waits for a call before its next one."""
    calls = [event for event in spans if event["name"].startswith("c10d::")]
    calls.sort(key=lambda event: event["ts"])
    begins = [event["ts"] for event in calls]
    work = [event for event in spans if event["name"].startswith("gloo:")]
    places = np.searchsorted(begins, [event["ts"] for event in work], side="right") - 1
    return [(calls[i]["name"], event) for i, event in zip(places, work, strict=True) if i >= 0]


def describe(trace: dict[str, Any]) -> str:
    """What `summarize` gives, on one line."""

    def part(name: str) -> str:
        return f"{trace[name]:.1f} ms ({trace[name] / trace['wall']:.0%})"

    exchange = [name for name in ("all_reduce", *_SHARDED) if name in trace]
    return (
        f"profile of {trace['steps']} steps: {trace['wall']:.1f} ms a step, {trace['device']} "
        f"{part('busy')}, waiting for the loader {part('loader')}, "
        + ", ".join(f"{name.replace('_', '-')} {part(name)}" for name in exchange)
    )


def _times(events: list[dict[str, Any]]) -> Times:
    times = np.array([(e["ts"], e["ts"] + e["dur"]) for e in events]).reshape(-1, 2)
    return times[np.argsort(times[:, 0], kind="stable")]


def _windows(
    steps: Times, waits: Times, reports: np.ndarray, end: float
) -> list[tuple[float, float]]:
    """What counts: from the first wait to `end`, without what reports interrupt."""
    windows = []
    begin = waits[0, 0]
    for step, following in zip(steps, waits[1:], strict=False):
        inside = reports[(reports >= step[1]) & (reports <= following[0])]
        if len(inside):
            windows.append((begin, inside[0]))
            begin = following[0]
    return [*windows, (begin, end)]


def _covered(times: Times, windows: list[tuple[float, float]]) -> float:
    """How much of the windows at least one of `times` covers, microseconds."""
    total = 0.0
    ordered = times[np.argsort(times[:, 0], kind="stable")]
    for begin, end in windows:
        first, last = np.clip(ordered, begin, end).T
        before = np.concatenate([[begin], np.maximum.accumulate(last)[:-1]])
        total += np.maximum(last - np.maximum(first, before), 0).sum()
    return float(total)
