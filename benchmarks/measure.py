"""How everything here is measured: taking turns, a synchronised clock, memory, the environment."""

import json
import multiprocessing
import os
import platform
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
import transformers

from detalbert import atomic
from detalbert.errors import UserError, first_line

ROOT = Path(__file__).resolve().parents[1]


class Different(Exception):
    """The two sides of a benchmark do not agree, so their speeds mean nothing."""


@dataclass(frozen=True)
class Options:
    """What a stage is run on."""

    data: Path  # a folder with train.json and dev.json of SQuAD's shape
    tokenizer: str  # a folder or hub name
    repeats: int = 5
    examples: int | None = None  # at most so many questions of each file
    windows: int = 48  # windows of one optimizer step
    steps: int = 200  # of the loss-parity stage
    parity_windows: int = 8  # windows of one of its steps
    shape: str = "auto"  # of the model: a key of `shapes.SHAPES`; auto: small on a CPU
    sizes: str = "1e6,11.7e6,58.7e6"  # numbers in the gradients of `allreduce`
    text: Path | None = None  # a document a line, for pretraining; default: botocore's
    model: Path | None = None  # a folder, of `finetune`; default: the embedded model
    before: Path | None = None  # a checkout of an earlier commit, the peer of `serve`


def now(device: torch.device | None = None) -> float:
    """Seconds on a clock that waits until the device has done all it was given."""
    if device is not None and device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def interleave(
    sides: Mapping[str, Callable[[], Any]],
    repeats: int,
    device: torch.device | None = None,
    warm_up: int = 1,
) -> dict[str, list[float]]:
    """Seconds of each call: every side `warm_up` times unmeasured, then in turn, `repeats` times.

    Taking turns spreads whatever else the machine does over both sides.
    """
    for call in sides.values():
        for _ in range(warm_up):
            call()
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(repeats):
        for name, call in sides.items():
            began = now(device)
            call()
            seconds[name].append(now(device) - began)
    return seconds


def spread_of(values: list[float]) -> dict[str, Any]:
    """Median, spread (greatest less least) and every repeat."""
    return {
        "median": float(np.median(values)),
        "spread": float(max(values) - min(values)),
        "repeats": [float(value) for value in values],
    }


def rates(seconds: Mapping[str, list[float]], **amounts: float) -> dict[str, dict[str, Any]]:
    """Per side seconds, and for each amount `<name>_per_second`."""
    return {
        side: {
            "seconds": spread_of(values),
            **{
                f"{name}_per_second": spread_of([amount / value for value in values])
                for name, amount in amounts.items()
            },
        }
        for side, values in seconds.items()
    }


def ratio_of(results: Mapping[str, Mapping[str, Any]], name: str) -> float:
    """How many times the peer's median ours is."""
    return results["ours"][name]["median"] / results["peer"][name]["median"]


def peak_memory(prepare: Callable[..., Callable[[], Any]], *arguments: Any) -> int:
    """Bytes by which a fresh process grows at most while it runs `prepare(*arguments)()`.

    What `prepare` itself takes (imports, reading files, the inputs) is there before and does not
    count; what the call returns does. Linux only.
    """
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_growth, (prepare, arguments))


def _growth(prepare: Callable[..., Callable[[], Any]], arguments: Any) -> int:
    return growth(prepare(*arguments))


def growth(call: Callable[[], Any]) -> int:
    """Bytes by which this process grows at most while it runs `call()`. Linux only."""
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts over
    before = memory_of_process("VmRSS")
    kept = call()
    grown = memory_of_process("VmHWM") - before
    del kept
    return grown


def memory_of_process(name: str, process: int | str = "self") -> int:
    """VmRSS, or VmHWM, its greatest since the program began, in bytes; 0 after its end. Linux only.

    `ru_maxrss` of a child will not do: it counts the memory of the parent that it was forked from.
    """
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    sizes = [int(line.split()[1]) * 1024 for line in lines if line.startswith(name)]
    return sizes[0] if sizes else 0


def environment(device: torch.device) -> dict[str, Any]:
    """Versions, device, clocks, commit and load: what a figure depends on besides the code."""
    return {
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "tokenizers": tokenizers.__version__,
            "numpy": np.__version__,
            "cuda": torch.version.cuda,
        },
        "device": {
            "type": device.type,
            "name": torch.cuda.get_device_name() if device.type == "cuda" else _processor(),
            "cores": len(os.sched_getaffinity(0)),
            "threads": torch.get_num_threads(),
        },
        "clocks": _clocks(device),
        "commit": commit_of(ROOT),
        "load": os.getloadavg()[0],  # of the last minute, this benchmark's own included
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _clocks(device: torch.device) -> dict[str, Any]:
    """Clocks in MHz: of the cores, and of the GPU as `nvidia-smi` has them."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    clocks: dict[str, Any] = {
        "cpu_mhz": [float(x.split(":")[1]) for x in lines if x.startswith("cpu MHz")]
    }
    if device.type == "cuda":
        query = "--query-gpu=clocks.sm,clocks.mem,clocks.max.sm,power.limit"
        clocks["gpu"] = _output("nvidia-smi", query, "--format=csv,noheader")
    return clocks


def commit_of(checkout: Path) -> str | None:
    git = "git", "-C", str(checkout)
    commit = _output(*git, "rev-parse", "HEAD")
    changed = _output(*git, "status", "--porcelain", "--untracked-files=no")
    return f"{commit} and changes" if commit and changed else commit


def _output(*command: str) -> str | None:
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() or None if result.returncode == 0 else None


def write_json(path: Path, result: Mapping[str, Any]) -> None:
    """The file appears whole or not at all. Raises UserError where it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic.whole_file(path) as file:
            file.write(json.dumps(result, indent=1) + "\n")
    except OSError as error:
        raise UserError(f"--json {path}: cannot write it: {first_line(error)}") from None
