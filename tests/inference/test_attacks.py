"""Clients that do not send, do not read or leave: another is answered, and memory comes back."""

import contextlib
import json
import resource
import socket
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

from tests.conftest import Script
from tests.fakes.runs import wait_for
from tests.fakes.trained import LocalRun
from tests.inference.test_server import ASKED, get, send, start

HOST = b"Host: localhost\r\n"
BODY = json.dumps({**ASKED, "context": "It sank. " * 20}).encode()
POST = b"POST /answer HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n" + HOST
WHOLE = POST % len(BODY) + b"\r\n" + BODY
SLOW = POST % 100_000 + b"\r\n"
FULL = POST % (1 << 20) + b"\r\n" + b" " * ((1 << 20) - 1)  # all but the last byte


def send_ahead(client: socket.socket, data: bytes) -> None:
    """As much of `data` as the system takes at once."""
    client.setblocking(False)
    with contextlib.suppress(OSError):
        client.send(data)


def send_all(client: socket.socket, data: bytes) -> None:
    with contextlib.suppress(OSError):  # the server closed it
        client.sendall(data)


def send_headers(client: socket.socket, size: bytes) -> None:
    """Header lines without an end, up to where the server refuses them; 40 MB at most."""
    with pytest.raises(OSError):
        client.sendall(b"GET / HTTP/1.1\r\n" + HOST)
        for _ in range(40):
            client.sendall((b"A: " + b"a" * 95 + b"\r\n") * 10_000)


def send_and_leave(client: socket.socket, data: bytes) -> None:
    send_all(client, data)
    client.close()


Attack = tuple[int, Callable[[socket.socket, bytes], None], bytes]
# Connections, and what each does with some bytes; the soak has five times the connections.
ATTACKS: dict[str, Attack] = {
    "unread pages": (101, send_ahead, (b"GET / HTTP/1.1\r\n" + HOST + b"\r\n") * 420),
    "unread answers": (101, send_ahead, WHOLE * 4),
    "no request": (300, send_ahead, b""),
    "half a header": (300, send_ahead, b"GET / HTTP/1.1\r\nHo"),
    "slow bodies": (100, send_ahead, SLOW),
    "full bodies": (80, send_all, FULL),
    "no end of headers": (4, send_headers, b""),
    "clients that leave": (60, send_and_leave, WHOLE),
}
IMPATIENT = """
import predict
from detalbert.inference import web
web.PATIENCE, web.CONNECTIONS = 2.0, 150
sys.exit(predict.main(sys.argv[1:]))
"""


def listening(port: int) -> int:
    """The id of the process that listens on a port."""
    connections = psutil.net_connections("tcp4")
    listeners = [x for x in connections if x.laddr[1] == port and x.status == psutil.CONN_LISTEN]
    return listeners[0].pid


@contextlib.contextmanager
def attacked(port: int, kind: str, factor: int) -> Iterator[list[socket.socket]]:
    """Yield the open connections of an attack, which do not end it by themselves."""
    count, act, data = ATTACKS[kind]
    with contextlib.ExitStack() as stack:
        clients = []
        for _ in range(factor * count):
            client = stack.enter_context(socket.socket())
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.settimeout(60)
            client.connect(("127.0.0.1", port))
            act(client, data)
            clients.append(client)
        yield clients


def withstand(served: psutil.Process, port: int, kind: str, factor: int) -> None:
    before = served.memory_info().rss
    files = served.num_fds()
    with attacked(port, kind, factor) as clients:
        assert get(port, "/health")[0] == 200

        def closed() -> bool:
            assert get(port, "/health")[0] == 200
            for client in clients if kind == "slow bodies" else ():
                send_ahead(client, b" ")
            time.sleep(0.2)
            return served.num_fds() <= files + 5

        wait_for(closed)
    assert served.memory_info().rss < before + (100 << 20)
    # What the attack has left to compute ends as well.
    wait_for(lambda: send(port, ASKED)[0] == 200)


@pytest.fixture(scope="module")
def many_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4096)), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_an_attack_costs_little(local_run: LocalRun, script: Script, many_files: None) -> None:
    """In all forms, one after another, with a server of little patience."""
    command = [*script(IMPATIENT), "--model", local_run.path, "--serve", "--port", "0"]
    process, port = start(command)
    try:
        served = psutil.Process(listening(port))
        assert send(port, {**ASKED, "context": "It sank. " * 1500})[0] == 200  # it has its memory
        for kind in ATTACKS:
            withstand(served, port, kind, 1)
    finally:
        process.kill()
    assert "Traceback" not in process.stderr.read()


@pytest.mark.soak
@pytest.mark.parametrize("kind", ATTACKS)
def test_a_large_attack_costs_little(
    kind: str, local_run: LocalRun, python: str, many_files: None
) -> None:
    process, port = start([python, "predict.py", "--model", local_run.path, "--serve", "--port", 0])
    try:
        assert send(port, {**ASKED, "context": "It sank. " * 1500})[0] == 200
        for _ in range(3):
            withstand(psutil.Process(listening(port)), port, kind, 5)
    finally:
        process.kill()
    assert "Traceback" not in process.stderr.read()
