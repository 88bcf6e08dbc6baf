"""Slurm as cluster/slurm.sbatch meets it: `srun` and `scontrol` as programs, and its signals.

As seen on a real 22.05: a job's own signal, and `scancel --signal`, reach each process of the step
and not the batch script; a requeue and a preemption reach that, too, and SIGKILL comes after a
grace. The job then starts again, with SLURM_RESTART_COUNT. With SLURM_EXPORT_ENV=NONE, which sbatch
makes of SBATCH_EXPORT, a task has no PATH.
"""

import contextlib
import os
import signal
import subprocess

from tests.conftest import ROOT
from tests.fakes.runs import wait_for
from tests.leftovers import Started

SRUN = """#!/bin/bash
export=$SLURM_EXPORT_ENV
while [[ $1 == --* ]]; do
  [[ $1 == --export=* ]] && export=${1#*=}
  shift
done
if [[ $export == NONE ]]; then
  echo "slurmstepd: error: execve(): $1: No such file or directory" >&2
  exit 2
fi
export SLURM_LAUNCH_NODE_IPADDR=127.0.0.1
for ((node = 0; node < SLURM_NNODES; node++)); do
  SLURM_NODEID=$node "$@" &
  tasks+=($!)
done
highest=0
wait -n "${tasks[@]}"
touch "$FIRST_ENDED"
for task in "${tasks[@]}"; do
  wait "$task"
  status=$?
  ((status > highest)) && highest=$status
done
exit $highest
"""
NO_STEP = "slurm.sbatch", "/srun"  # the batch script, and what waits for the step
WAIT = 15  # seconds
SCONTROL = '#!/bin/bash\necho "$@" >> "$REQUEUED"\n'


class Slurm:
    """A job of one rank on each of `nodes`, in a copy of the checkout made of links."""

    def __init__(self, folder, python, nodes, *words):
        self.folder, self.words = folder / "checkout", words
        self.folder.mkdir()
        for item in ROOT.iterdir():
            if item.name not in ("runs", ".git"):
                (self.folder / item.name).symlink_to(item)
        programs = folder / "programs"
        programs.mkdir()
        (programs / "python").symlink_to(python)
        for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
            (programs / name).write_text(text)
            (programs / name).chmod(0o755)
        self.requeued = folder / "requeued"
        self.ended = folder / "ended"  # the first of the step's tasks
        self.env = {"PATH": f"{programs}:/usr/bin:/bin", "REQUEUED": str(self.requeued)}
        self.env["FIRST_ENDED"] = str(self.ended)
        self.env |= {"SLURM_JOB_ID": str(os.getpid()), "SLURM_NNODES": str(nodes)}
        self.starts = 0

    def start(self, **env):
        command = ["bash", "cluster/slurm.sbatch", *self.words]
        log = self.folder.with_name(f"log-{self.starts}")
        env = {**self.env, "SLURM_RESTART_COUNT": str(self.starts), **env}
        self.starts += 1
        for file in (self.requeued, self.ended):
            file.unlink(missing_ok=True)
        return Started(command, log, self.folder, **env)

    def end(self, job):
        """Its exit status, and whether it asked to be requeued; nothing of it is left. Tasks that
        wait for one that has ended are killed, as by `srun --wait`, but sooner."""
        wait_for(lambda: self.ended.exists() or job.main.poll() is not None)
        with contextlib.suppress(subprocess.TimeoutExpired):
            job.main.wait(WAIT)
        if job.main.poll() is None:
            job.signal(signal.SIGKILL, *NO_STEP)
        assert job.left() == []
        return job.main.returncode, self.requeued.exists()
