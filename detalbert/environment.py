"""Facts about the machine and the software that a measured figure depends on."""

import os
import platform
import re
import subprocess
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import torch


def environment(device: torch.device) -> dict[str, Any]:
    """Return versions, device, commit, load and time, as JSON values."""
    processor = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    cpu = processor[1] if processor else platform.machine()
    return {
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            **{name: metadata.version(name) for name in ("transformers", "tokenizers", "numpy")},
            "cuda": torch.version.cuda,
        },
        "device": {
            "type": device.type,
            "name": torch.cuda.get_device_name() if device.type == "cuda" else cpu,
            "cores": len(os.sched_getaffinity(0)),
            "threads": torch.get_num_threads(),
        },
        "commit": commit_of(Path(__file__).parents[1]),
        "load": os.getloadavg()[0],  # mean of the last minute, this process included
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


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
