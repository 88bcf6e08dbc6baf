"""What a run leaves behind on its machine: processes that it started, and shared memory."""

import contextlib
import os
import time
from pathlib import Path

import psutil

MARK = "DETALBERT_TEST_RUN"  # in the environment of a run, and so of all that it starts
SHARED_MEMORY = Path("/dev/shm")


class Leftovers:
    """Watches one run.

    Args: name: tells its processes from those of other runs; the run is started with `env`.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.env = {**os.environ, MARK: name}
        self.before = self._shared_memory()

    def processes(self) -> list[psutil.Process]:
        """All that the run started, children of children too, whoever their parent is now."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                gone = process.status() == psutil.STATUS_ZOMBIE  # its parent has yet to ask
                if not gone and process.environ().get(MARK) == self.name:
                    found.append(process)
        return found

    def after(self, seconds: float = 5) -> list[str]:
        """What is still there so many seconds later; returns at once where nothing is."""
        deadline = time.monotonic() + seconds
        while (left := self._left()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return left

    def sweep(self) -> None:
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                process.kill()

    def _left(self) -> list[str]:
        files = self._shared_memory() - self.before
        if files:
            files -= self._of_others()  # tests that run beside this one
            # A process that makes a semaphore unlinks it at once: what is listed in between is gone
            # by now, and was another test's or the run's own.
            files &= self._shared_memory()
        return [str(process) for process in self.processes()] + sorted(files)

    def _of_others(self) -> set[str]:
        """Shared memory that a process outside of the run has mapped."""
        found = set()
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process.environ().get(MARK) != self.name:
                    maps = Path(f"/proc/{process.pid}/maps").read_text()
                    found |= {
                        line.split("/dev/shm/")[1]
                        for line in maps.splitlines()
                        if "/dev/shm/" in line
                    }
        return found

    def _shared_memory(self) -> set[str]:
        return {path.name for path in SHARED_MEMORY.glob("*")}
