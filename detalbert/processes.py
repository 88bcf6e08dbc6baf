"""Ends of processes: with the parent, and by SIGTERM and SIGINT.

Schedulers and terminals send those signals to all processes of a run. So a forked process ignores
them, and its parent decides when it ends; in return it ends with its parent, however that ends.
"""

import ctypes
import multiprocessing
import os
import signal
import sys
from multiprocessing import context, popen_fork
from multiprocessing.process import BaseProcess
from types import FrameType

from detalbert.files import remove_temporaries
from detalbert.log import rank

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
# Of <linux/prctl.h>.
_PR_SET_PDEATHSIG = 1


def end_on_signals(when: str) -> None:
    """End this process on SIGTERM and SIGINT with status 128 + the signal's number.

    It writes a line, "stopped by SIGTERM" and `when`. An ignored signal (SIGINT in a shell's
    background) stays ignored.
    """

    def end(number: int, frame: FrameType | None) -> None:
        remove_temporaries()
        say(f"stopped by {signal.Signals(number).name}{when}")
        # An exception could be caught or printed on its way.
        os._exit(128 + number)

    for number in STOP_SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, end)


def say(line: str) -> None:
    """Write a line to standard error, from a signal's handler, which must not log. Another rank
    than 0 says which it is: a signal may have reached it alone.
    """
    before = "\n" if os.isatty(2) else ""  # after a bar
    prefix = f"rank {rank()}: " if rank() else ""
    os.write(2, f"{before}INFO: {prefix}{line}\n".encode())


class _Handle(popen_fork.Popen):  # undocumented; multiprocessing makes one for each fork
    def terminate(self) -> None:
        """Kill the process. multiprocessing (at exit) and torch's loader call this and then wait;
        SIGTERM, which they would send, is blocked in it.
        """
        self.kill()


class _Child(context.ForkProcess):
    """Forked process that leaves SIGTERM and SIGINT to its parent, and ends with it."""

    @staticmethod
    def _Popen(process_obj: BaseProcess) -> _Handle:
        # A fork inherits the mask, which this process has for the moment of the fork only.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        try:
            return _Handle(process_obj)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def run(self) -> None:
        parent = multiprocessing.parent_process()
        assert parent is not None
        assert parent.pid is not None
        end_with_parent(parent.pid)
        super().run()


class _Children(context.ForkContext):
    Process = _Child


CHILDREN = _Children()  # the multiprocessing context of all processes that a program forks


def end_with_parent(parent: int) -> None:
    """End this process when `parent`, the id of the process that started it, ends in any way: on
    Linux, by prctl(2), at the end of the *thread* that started it.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # The parent may have ended before the kernel was asked.
    if os.getppid() != parent:
        os._exit(1)
