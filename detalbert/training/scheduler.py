"""Schedulers that started a local run, by its environment, and how long a stop may take there."""

import logging
import os
import threading

from detalbert.processes import say

log = logging.getLogger(__name__)
_KNOWN = {  # a variable that the scheduler sets: its name, and a variable that counts its restarts
    "SLURM_JOB_ID": ("Slurm job", "SLURM_RESTART_COUNT"),
    "SKYPILOT_TASK_ID": ("SkyPilot task", ""),
    "DSTACK_RUN_NAME": ("dstack run", ""),
    "TORCHELASTIC_RUN_ID": ("torchrun", ""),
}


def seconds_to_stop() -> int | None:
    """Return after how many seconds torchrun kills the ranks that it stops; None without it."""
    below = "TORCHELASTIC_RUN_ID" in os.environ
    return int(os.environ.get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", 30)) if below else None


def say_scheduler() -> None:
    """Log the scheduler, if there is one, and how long a stop may take."""
    found = ((*_KNOWN[key], os.environ[key]) for key in _KNOWN if key in os.environ)
    name, restarts, job = next(found, ("", "", ""))
    if name:
        job = "" if name == "torchrun" else f" {job}, restart {os.environ.get(restarts, 0)}"
        limit = f"; a stop may take {seconds} s" if (seconds := seconds_to_stop()) else ""
        log.info("%-14s%s%s", "scheduler", name + job, limit)


def warn_of_a_long_stop() -> None:
    """Warn, when half of the seconds that a stop may take are over, what to raise. For the handler
    of a signal.
    """
    if seconds := seconds_to_stop():
        said = f"not stopped after {seconds // 2} s; torchrun kills its ranks after {seconds} s: "
        said += "raise TORCH_ELASTIC_SHUTDOWN_TIMEOUT, and the scheduler's own grace period"
        timer = threading.Timer(seconds / 2, say, [said])
        timer.daemon = True
        timer.start()
