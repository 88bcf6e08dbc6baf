"""Facts about the machine and the software that a measured figure depends on.

A figure without them cannot be compared with another one.
"""

import os
import platform
import re
import subprocess
import time
from importlib import metadata
from pathlib import Path

import torch


def environment(device: torch.device) -> dict[str, object]:
    """Return versions, device, commit, load and time, as JSON values."""
    return {
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": metadata.version("transformers"),
            "tokenizers": metadata.version("tokenizers"),
            "numpy": metadata.version("numpy"),
            "cuda": torch.version.cuda,
        },
        "device": {
            "type": device.type,
            "name": torch.cuda.get_device_name() if device.type == "cuda" else _cpu_name(),
            "cores": len(os.sched_getaffinity(0)),
            "threads": torch.get_num_threads(),
        },
        "commit": commit_of(Path(__file__).parents[1]),
        "load": os.getloadavg()[0],  # mean of the last minute, this process included
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _cpu_name() -> str:
    """Return the model of the processor; its architecture where Linux does not say it."""
    processor = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return processor[1] if processor else platform.machine()


def commit_of(checkout: Path) -> str | None:
    """Return the commit of a checkout, marked if files were changed; None if there is none."""
    try:
        described = subprocess.check_output(
            ["git", "describe", "--always", "--exclude=*", "--abbrev=40", "--dirty"],
            cwd=checkout,
            stderr=subprocess.DEVNULL,
            text=True,
            timeout=20,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return described.strip().replace("-dirty", " and changes")
