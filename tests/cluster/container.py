"""A container of a task on a Determined cluster, prepared and launched by Determined's own code.

It is a mount namespace whose /run and /tmp are its own; its steps are those of the master's
`entrypoint.sh`.
"""

import contextlib
import json
import os
import pathlib
import socket
import subprocess
import uuid

from detalbert.engine import safe_load
from tests.conftest import TINY, configured
from tests.fakes.master import TOKEN, FakeMaster

PORTS = ("C10D_PORT", "INTER_TRAIN_PROCESS_COMM_PORT_1", "INTER_TRAIN_PROCESS_COMM_PORT_2")

# Of the one trial, as variables without their DET_.
IDENTITY = {
    "CLUSTER_ID": "c",
    "AGENT_ID": "a",
    "CONTAINER_ID": "c",
    "TASK_ID": "1.task",
    "TASK_TYPE": "TRIAL",
    "USER": "determined",
    "RESOURCES_ID": "0",
    "RESOURCES_TYPE": "docker-container",
    "EXPERIMENT_ID": "7",
    "TRIAL_ID": "11",
    "TRIAL_RUN_ID": "1",
    "TRIAL_SEED": "1234",
}

# Directories of the outer /tmp stay reachable, by links, for the interpreter may live there.
CONTAINER = """
set -e
mount -t tmpfs none /run
mkdir -p /run/outside /run/determined/{info,workdir} /run/determined/train/{logs,model}
mount --rbind /tmp /run/outside
mount -t tmpfs none /tmp
(shopt -s dotglob; ln -s /run/outside/* /tmp/)  # looks at none of them: some vanish meanwhile
cd /run/determined/workdir
ln -sf /proc/$$/fd/1 /run/determined/train/logs/stdout.log
ln -sf /proc/$$/fd/2 /run/determined/train/logs/stderr.log
"$DET_PYTHON_EXECUTABLE" -m determined.exec.prep_container --download_context_directory --resources
set -x
test -f startup-hook.sh && source startup-hook.sh
set +x
"$DET_PYTHON_EXECUTABLE" -m determined.exec.prep_container --rendezvous
exec "$DET_PYTHON_EXECUTABLE" -m determined.exec.launch
"""


def namespace():
    """A command prefix that gives a mount namespace, or nothing where none is to be had."""
    for prefix in (["unshare", "-m"], ["unshare", "-r", "-m"]):
        mount = [*prefix, "mount", "-t", "tmpfs", "none", "/run"]
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            subprocess.run(mount, check=True, capture_output=True)
            return prefix
    return []


def free_port():
    with socket.socket() as listener:
        listener.bind(("", 0))  # as Determined's server: on all addresses
        return listener.getsockname()[1]


class Trial:
    """One trial on a cluster: its config, its checkpoint storage, its containers."""

    def __init__(
        self,
        sandbox,
        archive,
        cache_dir,
        python,
        folder,
        entrypoint="python3 train.py",
        base=TINY,
        **hparams,
    ):
        self.sandbox = sandbox
        self.archive = archive
        self.python = python
        self.config = configured(base, cache_dir, **hparams)
        self.config["entrypoint"] = entrypoint
        self.store_in(folder / "storage")

    def store_in(self, folder):
        self.storage = folder
        folder.mkdir(exist_ok=True)
        self.config["checkpoint_storage"] = {"type": "directory", "container_path": str(folder)}

    def master(self, **options):
        return FakeMaster(self.archive, **options)

    def run(
        self,
        master,
        checkpoint=None,
        steps=0,
        fails=False,
        **env,
    ):
        """One allocation of one container, from its entry point to its end; whether it `fails`."""
        task = self._task(master, steps)
        if checkpoint:
            task["DET_LATEST_CHECKPOINT"] = checkpoint
        done = subprocess.run(
            [*self.sandbox, "bash", "-c", CONTAINER],
            env={**os.environ, **task, **env},
            capture_output=True,
            text=True,
            timeout=1800,
        )
        assert bool(done.returncode) == fails, done.stdout[-2000:] + done.stderr[-4000:]
        assert fails or master.unknown == []
        return done

    def _task(self, master, steps):
        """The environment that the master gives a container, and ports that are free here."""
        variables = {
            **IDENTITY,
            "MASTER": master.url,
            "SESSION_TOKEN": TOKEN,
            "PYTHON_EXECUTABLE": self.python,
            "ALLOCATION_ID": f"1.{uuid.uuid4()}.1",
            "STEPS_COMPLETED": str(steps),
            "SLOT_IDS": json.dumps(list(range(master.slots[0]))),
            "HPARAMS": json.dumps(self.config["hyperparameters"]),
            "EXPERIMENT_CONFIG": json.dumps(self.config),
        }
        return {
            **{f"DET_{name}": value for name, value in variables.items()},
            **{name: str(free_port()) for name in PORTS},
            "PATH": f"{pathlib.Path(self.python).parent}:{os.environ['PATH']}",
            "NO_PROXY": "127.0.0.1",
        }

    def weights(self, checkpoint):
        return safe_load.read_weights(self.storage / checkpoint.uuid / "state_dict.pth")
