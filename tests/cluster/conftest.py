"""The package as it is uploaded, and a trial of it in a container beside a fake master."""

import contextlib
import copy
import functools
import io
import pickle
import shutil
import subprocess
import tarfile
from typing import NamedTuple

import pytest
from determined.common import context, v1file_utils

from tests.cluster.container import Trial, namespace
from tests.conftest import ROOT
from tests.fakes.master import FakeMaster

LAUNCHED = "python3 -m determined.launch.torch_distributed python3 train.py"


@pytest.fixture(scope="session")
def sandbox():
    prefix = namespace()
    if not prefix:
        pytest.skip("no mount namespace for /run/determined: unshare needs user namespaces or root")
    return prefix


def uploaded():
    """The files that `det experiment create configs/local.yaml .` sends, by its own code."""
    with contextlib.redirect_stdout(io.StringIO()):  # its progress
        return context.read_v1_context(ROOT)


@pytest.fixture(scope="session")
def archive():
    """The uploaded files as the master hands them to a container."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for file in uploaded():
            content = v1file_utils.base64.b64decode(file.content)
            member = tarfile.TarInfo(file.path)
            member.type = bytes([file.type])
            member.mode = file.mode
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def steps_of(checkpoints):
    return [checkpoint.metadata["steps_completed"] for checkpoint in checkpoints]


@pytest.fixture(scope="session")
def new_trial(sandbox, archive, cache_dir, python):
    return functools.partial(Trial, sandbox, archive, cache_dir, python)


@pytest.fixture
def trial(request, new_trial, tmp_path):
    return new_trial(tmp_path, **getattr(request, "param", {}))


class Ran(NamedTuple):
    """A trial of 60 steps that nothing disturbed, and what its master heard; to read."""

    trial: Trial
    master: FakeMaster  # without its server
    done: subprocess.CompletedProcess


@pytest.fixture(scope="session")
def ran(once, new_trial):
    def fill(folder):
        trial = new_trial(
            folder,
            max_steps=60,
            reporting_period=10,
            checkpoint_period=20,
            validation_period=20,
        )
        trial.config["log_policies"] = [{"name": "a", "pattern": "a text of a policy"}]
        with trial.master() as master:
            done = trial.run(master)
        (folder / "ran.pickle").write_bytes(pickle.dumps((trial, master, done)))

    return Ran(*pickle.loads((once("trial", fill) / "ran.pickle").read_bytes()))


@pytest.fixture
def branch(ran, tmp_path):
    """Another one with the config and the checkpoints of `ran`."""
    trial = copy.deepcopy(ran.trial)
    trial.store_in(shutil.copytree(ran.trial.storage, tmp_path / "storage"))
    return trial
