"""The instance metadata service of tests that watch for notices; a run to damage."""

import shutil

import pytest

from detalbert.training import spot
from tests.fakes.metadata import MetadataServer

NOTICE = '{"action": "terminate", "time": "2026-01-01T00:02:00Z"}'
ADVICE = '{"noticeTime": "2026-01-01T00:00:00Z"}'


@pytest.fixture
def service(monkeypatch):
    with MetadataServer() as server:
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", server.url)
        monkeypatch.setattr(spot, "TIMEOUT", 60)  # this server shares a busy machine
        yield server


@pytest.fixture
def copied(finished, tmp_path):
    return shutil.copytree(finished / "out", tmp_path / "out")
