"""A run in processes of its own, and what it leaves on its machine: processes, shared memory."""

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

import psutil

from tests.conftest import ROOT
from tests.fakes.runs import wait_for


class Started:
    """A command, started in the root of the checkout; what it says is in `log`.

    That file, as standard error, tells its processes from those of others: all that it started,
    children of children too, whoever their parent is now.
    """

    def __init__(self, command, log, cwd=ROOT, **env):
        self.log = log.resolve()
        self.before = set(os.listdir("/dev/shm"))
        with log.open("w") as file:
            self.main = subprocess.Popen(
                [str(word) for word in command],
                cwd=cwd,
                env=os.environ | env,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )

    @property
    def said(self):
        return self.log.read_text()

    def wait_for(self, *texts):
        """Wait until it says one of these; it must not end before."""

        def ended_or_said():
            return self.main.poll() is not None or any(text in self.said for text in texts)

        wait_for(ended_or_said)
        assert self.main.poll() is None, self.said

    def processes(self):
        return [process for process in psutil.process_iter() if self._is_ours(process)]

    def signal(self, number, *but):
        """Send a signal to all processes, as a scheduler does, except to these programs."""
        spared = ("zygote.py run", *but)  # the first would hand it on
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                if not any(program in " ".join(process.cmdline()) for program in spared):
                    process.send_signal(number)

    def left(self):
        """What does not go after the end, in half a minute. Its processes are killed then."""
        self.main.wait(300)
        left = self._left()
        deadline = time.monotonic() + 30
        while left and time.monotonic() < deadline:
            time.sleep(0.1)
            left = self._left()
        self.signal(signal.SIGKILL)
        return left

    def _is_ours(self, process):
        with contextlib.suppress(OSError):  # it ended, or is another user's
            return os.readlink(f"/proc/{process.pid}/fd/2") == str(self.log)
        return False

    def _left(self):
        files = set(os.listdir("/dev/shm")) - self.before
        if files:
            files -= self._mapped_by_others()  # tests that run beside this one
            # A process that makes a semaphore unlinks it at once: what is listed in between is gone
            # by now, and was another test's or the run's own.
            files &= set(os.listdir("/dev/shm"))
        return [str(process) for process in self.processes()] + sorted(files)

    def _mapped_by_others(self):
        mapped = set()
        for process in psutil.process_iter():
            if self._is_ours(process):
                continue
            with contextlib.suppress(OSError):
                for line in Path(f"/proc/{process.pid}/maps").read_text().splitlines():
                    _, in_shared_memory, name = line.partition("/dev/shm/")
                    if in_shared_memory:
                        mapped.add(name)
        return mapped
