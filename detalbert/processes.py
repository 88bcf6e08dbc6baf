"""What a process may know of its machine: how many cores are its own, and that its parent ended."""

import ctypes
import os
import signal
import sys
import threading
import time

import loky
import psutil

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
_PERIOD = 0.5  # seconds between two looks at the parent, where the kernel tells nobody


def count_cores() -> int:
    """Cores that this process may use: the machine's, less what its affinity (taskset) or its
    container's CPU quota (cgroup) takes away. `LOKY_MAX_CPU_COUNT` lowers it."""
    return loky.cpu_count()


def idle_cores(seconds: float = 0.5) -> float:
    """How many of these cores nobody used during `seconds`, this process asleep meanwhile.

    A quota takes no core away from anybody: of 64 cores, 50 of them busy, a container with a quota
    of 4 finds 4 idle ones.
    """
    mine = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    busy = psutil.cpu_percent(seconds, percpu=True)  # of every core of the machine
    idle = sum(1 - b / 100 for core, b in enumerate(busy) if mine is None or core in mine)
    return min(count_cores(), idle)


def end_with_parent(parent: int) -> None:
    """Have this process end when `parent`, the process id that started it, ends in any way.

    On Linux the kernel kills it, by `PR_SET_PDEATHSIG` of prctl(2), at the end of the *thread* that
    started it; elsewhere a thread of its own looks twice a second.
    """
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    if libc is None or libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        threading.Thread(target=_watch, args=(parent,), name="parent", daemon=True).start()
    if os.getppid() != parent:  # it ended before the kernel was asked
        os._exit(1)


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_PERIOD)
    os._exit(1)  # sys.exit() would wait for a queue that nobody reads
