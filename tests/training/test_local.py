"""Processes of one machine: the ports on which they meet."""

import errno
import socket

import pytest
import torch

from detalbert.training.local import _common_ports


def test_ports_are_held_on_all_addresses_until_all_ranks_know_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A port that only localhost has free was taken, and Determined's server could not bind it."""
    refused = []

    def broadcast(common: list[list[int]]) -> None:
        for port in common[0]:
            with socket.socket() as other, pytest.raises(OSError) as error:
                other.bind(("127.0.0.2", port))
            refused.append(error.value.errno)

    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)
    monkeypatch.setattr(torch.distributed, "broadcast_object_list", broadcast)
    ports = _common_ports()
    assert refused == [errno.EADDRINUSE] * 2
    for port in ports:
        with socket.create_server(("", port)):
            pass
