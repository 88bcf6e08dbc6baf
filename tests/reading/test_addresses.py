"""Addresses that are refused in one line: what is no regular file, and Azure without a login."""

import os
import socket

import pyarrow as pa
import pyarrow.fs
import pytest

from detalbert.addresses import find_files
from detalbert.command import existing_file
from detalbert.errors import UserError


@pytest.mark.parametrize("kind", ["pipe", "socket", "device"])
def test_what_is_no_regular_file_is_refused_at_once(kind, tmp_path):
    """A pipe without a writer waits for ever, as a device is read for ever."""
    path = tmp_path / "a.csv"
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "socket":
            socket.socket(socket.AF_UNIX).bind(str(path))
        case "device":
            path.symlink_to("/dev/zero")
    with pytest.raises(UserError, match="k: .*a.csv: a device, a pipe or a socket; save"):
        find_files(str(path), key="k", endings=[".csv"])
    with pytest.raises(UserError, match="a.csv: no such file"):
        existing_file(str(path))


@pytest.mark.parametrize("address", ["az://container/a.csv", "az://container", "az://container/*"])
def test_azure_without_an_account_or_a_login_is_one_line(address, monkeypatch):
    no_login = r"^az://container: no login to Azure \(.*\); set AZURE_STORAGE_ACCOUNT, and run"
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT", raising=False)
    with pytest.raises(UserError, match=no_login):
        find_files(address, key="k", endings=[".csv"])

    class NotLoggedIn:
        def __init__(self, account_name):
            assert account_name == "mine"

        def get_file_info(self, path):
            assert path == "container/file"  # of a container alone, pyarrow aborts
            raise pa.ArrowException("Unknown error: N5Azure4Core")

    monkeypatch.setattr(pa.fs, "AzureFileSystem", NotLoggedIn)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT", "mine")
    with pytest.raises(UserError, match=no_login):
        find_files(address, key="k", endings=[".csv"])
