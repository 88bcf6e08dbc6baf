"""Schedulers that started a local run, by its environment, and how long a stop may take there."""

import logging
import os
import threading

from detalbert.processes import say

log = logging.getLogger(__name__)
_FACTS = {"SLURM_JOB_ID": "Slurm", "SLURM_RESTART_COUNT": "restart", "SKYPILOT_TASK_ID": "SkyPilot"}


def seconds_to_stop() -> int | None:
    """Return after how many seconds torchrun kills the ranks that it stops; None without it."""
    below = "TORCHELASTIC_RUN_ID" in os.environ
    return int(os.environ.get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", 30)) if below else None


def say_scheduler() -> None:
    """Log the job and torchrun, if there are any, and how long a stop may take."""
    found = [f"{name} {os.environ[key]}" for key, name in _FACTS.items() if key in os.environ]
    if seconds := seconds_to_stop():
        found.append(f"torchrun, where a stop may take {seconds} s")
    if found:
        log.info("%-14s%s", "scheduler", ", ".join(found))


def warn_of_a_long_stop() -> None:
    """Warn, when half of the seconds that a stop may take are over, what to raise."""
    if seconds := seconds_to_stop():
        said = f"not stopped after {seconds // 2} s; torchrun kills its ranks after {seconds} s: "
        said += "raise TORCH_ELASTIC_SHUTDOWN_TIMEOUT, and the scheduler's own grace period"
        timer = threading.Timer(seconds / 2, say, [said])
        timer.daemon = True
        timer.start()
