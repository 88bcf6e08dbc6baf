"""A run in processes of its own, and what it leaves on its machine: processes, shared memory."""

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil

from tests.conftest import ROOT
from tests.fakes.runs import wait_for


class Started:
    """A command, started in the root of the checkout; what it says is in `log`.

    That file, as standard error, tells its processes from those of others: all that it started,
    children of children too, whoever their parent is now.
    """

    def __init__(self, command: list[Any], log: Path, cwd: Path = ROOT, **env: str) -> None:
        self.log, self.before = log.resolve(), set(os.listdir("/dev/shm"))
        with log.open("w") as file:
            streams: dict[str, Any] = {"stdout": file, "stderr": file, "env": os.environ | env}
            words = [str(word) for word in command]
            self.main = subprocess.Popen(words, cwd=cwd, start_new_session=True, **streams)

    @property
    def said(self) -> str:
        return self.log.read_text()

    def wait_for(self, *texts: str) -> None:
        """Wait until it says one of these; it must not end before."""
        wait_for(lambda: self.main.poll() is not None or any(t in self.said for t in texts), 600)
        assert self.main.poll() is None, self.said

    def processes(self) -> list[psutil.Process]:
        return [process for process in psutil.process_iter() if self._is_ours(process)]

    def signal(self, number: signal.Signals, *but: str) -> None:
        """Send a signal to all processes, as a scheduler does, except to these programs."""
        spared = ("zygote.py run", *but)  # the first would hand it on
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                if not any(program in " ".join(process.cmdline()) for program in spared):
                    process.send_signal(number)

    def left(self) -> list[str]:
        """What is still there five seconds after the end. Its processes are killed then."""
        self.main.wait(120)
        deadline = time.monotonic() + 5
        while (left := self._left()) and time.monotonic() < deadline:
            time.sleep(0.1)
        self.signal(signal.SIGKILL)
        return left

    def _is_ours(self, process: psutil.Process) -> bool:
        with contextlib.suppress(OSError):  # it ended, or is another user's
            return os.readlink(f"/proc/{process.pid}/fd/2") == str(self.log)
        return False

    def _left(self) -> list[str]:
        files = set(os.listdir("/dev/shm")) - self.before
        if files:
            files -= self._mapped_by_others()  # tests that run beside this one
            # A process that makes a semaphore unlinks it at once: what is listed in between is gone
            # by now, and was another test's or the run's own.
            files &= set(os.listdir("/dev/shm"))
        return [str(process) for process in self.processes()] + sorted(files)

    def _mapped_by_others(self) -> set[str]:
        found = set()
        for process in psutil.process_iter():
            with contextlib.suppress(OSError):
                if not self._is_ours(process):
                    lines = Path(f"/proc/{process.pid}/maps").read_text().splitlines()
                    found |= {line.split("/dev/shm/")[1] for line in lines if "/dev/shm/" in line}
        return found
