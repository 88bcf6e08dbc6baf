"""Measuring: sides that run in turn, medians with their spread, and the machine.

Both sides run in turn on the same machine, so that other load falls on both; the price is that
caches and clocks are shared, too.
"""

import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from detalbert.errors import UserError

# Of a stage, as it becomes JSON.
Result = dict[str, Any]

ROOT = Path(__file__).resolve().parents[1]
SIDES = ("ours", "baseline")


def experiment(name: str) -> Any:
    """Return a part of experiments.yaml."""
    path = ROOT / "benchmarks" / "experiments.yaml"
    return yaml.safe_load(path.read_text())[name]


def device() -> torch.device:
    """Return the first GPU, or the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def device_name() -> str:
    """Return what CUDA calls the GPU, or Linux the processor."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    text = Path("/proc/cpuinfo").read_text()
    names = re.findall(r"model name\s*: (.*)", text)
    return names[0] if names else platform.machine()


def race(run: Callable[[str], object], repeats: int) -> dict[str, list[float]]:
    """Return the seconds of each `run(side)`; the sides run in turn."""
    seconds: dict[str, list[float]] = {side: [] for side in SIDES}
    for _ in range(repeats):
        for side in SIDES:
            start = time.perf_counter()
            run(side)
            # All work queued on the GPU is done before the next side begins.
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            seconds[side].append(time.perf_counter() - start)
    return seconds


def speeds(amounts: Sequence[float], seconds: Sequence[float]) -> Result:
    """Return the median speed, the spread (greatest less least) and every repeat."""
    repeats = [amount / value for amount, value in zip(amounts, seconds, strict=True)]
    return {
        "median": float(np.median(repeats)),
        "spread": max(repeats) - min(repeats),
        "repeats": repeats,
    }


def compare(seconds: Mapping[str, list[float]], unit: str, amounts: Sequence[float]) -> Result:
    """Return the `results` of both sides and the `ratio` of their medians.

    Args:
        seconds: of each run, by side.
        unit: of the work, such as "tokens".
        amounts: of the work of each run.
    """
    # One name for speeds and ratio, so that the table finds both.
    figure = f"{unit}_per_second"
    ours = speeds(amounts, seconds["ours"])
    baseline = speeds(amounts, seconds["baseline"])
    ratio = ours["median"] / baseline["median"]
    return {
        "results": {
            "ours": {figure: ours},
            "baseline": {figure: baseline},
        },
        "ratio": {figure: ratio},
    }


def run_python(*arguments: str, **env: str) -> str:
    """Run Python in the repository's root; return its output. Raises UserError if it fails, below
    what it has written to standard error.
    """
    process = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=os.environ | env,
        stdout=subprocess.PIPE,
        text=True,
    )
    if process.returncode != 0:
        command = " ".join(arguments[:2])
        raise UserError(f"it ended with status {process.returncode}", key=command)
    return process.stdout


def environment() -> Result:
    """Return versions, device, commit, load and time, without which no figure can be compared."""
    # Versions of what computes; others change no figure.
    versions = {"python": platform.python_version()}
    for package in ("torch", "transformers", "tokenizers", "numpy"):
        versions[package] = metadata.version(package)
    described = subprocess.run(
        ["git", "describe", "--always", "--exclude=*", "--abbrev=40", "--dirty"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    return {
        "versions": versions,
        "device": {
            "type": device().type,
            "name": device_name(),
            "cores": len(os.sched_getaffinity(0)),
            "threads": torch.get_num_threads(),
        },
        "commit": described.stdout.strip(),  # empty without a checkout
        "load": os.getloadavg()[0],  # mean of the last minute, this process included
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
