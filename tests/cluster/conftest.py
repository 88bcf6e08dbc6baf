"""The package as it is uploaded, and a trial of it in a container beside a fake master."""

import contextlib
import io
import pathlib
import subprocess
import tarfile
from typing import Any

import pytest
from determined.common import context, v1file_utils

from tests.cluster.container import Trial, namespace
from tests.conftest import ROOT
from tests.fakes.master import FakeMaster

LAUNCHED = "python3 -m determined.launch.torch_distributed python3 train.py"


@pytest.fixture(scope="session")
def sandbox() -> list[str]:
    if not (prefix := namespace()):
        pytest.skip("no mount namespace for /run/determined: unshare needs user namespaces or root")
    return prefix


def uploaded() -> list[Any]:
    """The files that `det experiment create configs/local.yaml .` sends, by its own code."""
    with contextlib.redirect_stdout(io.StringIO()):  # its progress
        return context.read_v1_context(ROOT)


@pytest.fixture(scope="session")
def archive() -> bytes:
    """The uploaded files as the master hands them to a container."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for file in uploaded():
            member = tarfile.TarInfo(file.path)
            member.type, member.mode = bytes([file.type]), file.mode
            content = v1file_utils.base64.b64decode(file.content)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def finished(done: subprocess.CompletedProcess, master: FakeMaster) -> None:
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert master.unknown == []


def steps_of(checkpoints: list[Any]) -> list[int]:
    return [checkpoint.metadata["steps_completed"] for checkpoint in checkpoints]


@pytest.fixture
def trial(
    request: pytest.FixtureRequest,
    sandbox: list[str],
    archive: bytes,
    tmp_path: pathlib.Path,
    cache_dir: pathlib.Path,
    python: str,
) -> Trial:
    return Trial(sandbox, archive, tmp_path, cache_dir, python, **getattr(request, "param", {}))
