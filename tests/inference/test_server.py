"""The server: answers, errors, limits, and that a signal ends it."""

import asyncio
import contextlib
import http.client
import json
import math
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from threading import Event, Thread
from typing import Any
from unittest.mock import Mock

import pytest

from detalbert.inference import server, web
from detalbert.inference.model import Trained
from detalbert.inference.reply import ask, ask_together
from tests.conftest import ROOT, Script
from tests.fakes.no_models import refused
from tests.fakes.runs import wait_for
from tests.fakes.trained import LocalRun

TEXT = "The Kalonda carried tar. Ililra Voruro was captain of the Garlen. 東京 came late! 🚢 sank."
ASKED = {"question": "Which ship carried tar?", "context": TEXT}
JSON = {"Content-Type": "application/json"}


def connected(port: int, timeout: float = 300) -> Any:
    return contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=timeout))


def get(
    port: int, path: str, method: str = "GET", body: Any = None, **headers: str
) -> tuple[int, dict[str, str], bytes]:
    with connected(port) as connection:
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        return response.status, dict(response.headers), response.read()


def send(
    port: int, body: Any, path: str = "/answer", **headers: str
) -> tuple[int, dict[str, str], Any]:
    """POST; return the status, headers and JSON. A tuple is sent in pieces, without a length."""
    data = body if isinstance(body, bytes | tuple) else json.dumps(body).encode()
    status, received, content = get(port, path, "POST", data, **(JSON | headers))
    return status, received, json.loads(content)


def meter(port: int, name: str) -> float:
    """Return a metric; "waiting" is of the questions that wait for the model."""
    text = get(port, "/metrics")[2].decode()
    return float(text.partition(f"\n{name} ")[2].split()[0])


@contextlib.contextmanager
def serving_here(model: Trained, threshold: float = 0.0, **access: Any) -> Iterator[int]:
    """Serve the application on a port of this process."""
    served = web.make_server(server.make_app(model, threshold, **access))
    listener = web.listen("127.0.0.1", 0)
    thread = Thread(target=served.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        served.should_exit = True
        thread.join(30)


def start(command: list[Any]) -> tuple[subprocess.Popen, int]:
    """Start a server in a process of its own; return it and its port."""
    process = subprocess.Popen(
        [str(word) for word in command],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    line = process.stdout.readline()
    assert "serving on http://127.0.0.1:" in line, process.stderr.read()
    assert "): programs on this machine may ask, without a token; Ctrl-C ends it" in line
    return process, int(line.split("127.0.0.1:")[1].split()[0])


@pytest.fixture(scope="module")
def port(model: Trained) -> Iterator[int]:
    with serving_here(model) as port:
        yield port


def test_it_answers_as_the_command_line_does(port: int, model: Trained) -> None:
    status, _, reply = send(port, ASKED)
    assert status == 200
    assert reply == asdict(ask(model, ASKED["question"], TEXT, 0.0))

    # As it describes itself.
    description = json.loads(get(port, "/openapi.json")[2])
    responses = description["paths"]["/answer"]["post"]["responses"]
    assert sorted(responses) == ["200", "400", "401", "413", "422", "503", "504"]
    assert list(description["components"]["schemas"]["Reply"]["properties"]) == list(reply)


def test_nothing_of_the_page_is_from_elsewhere(port: int) -> None:
    status, headers, page = get(port, "/")
    assert status == 200
    assert page == server.PAGE.read_bytes()
    assert "default-src 'none'" in headers["content-security-policy"]
    assert b"http://" not in page
    assert b"https://" not in page


@pytest.mark.parametrize(
    ("path", "status"),
    [("/docs", 404), ("/redoc", 404), ("/etc/passwd", 404), ("/answer", 405), ("//", 404)],
)
def test_an_error_of_the_framework_is_a_line(path: str, status: int, port: int) -> None:
    received, headers, body = get(port, path, Range="bytes=9-1")
    assert received == status
    assert headers["content-type"] == "application/json"
    assert list(json.loads(body)) == ["error"]
    assert b"\n" not in body


BAD: dict[str, tuple[Any, int, str]] = {
    "not JSON": (b"{", 422, "JSON"),
    "nothing": (b"", 422, "required"),
    "not UTF-8": (b'{"question": "\xe9", "context": "b"}', 400, ""),
    "half a character": (b'{"question": "\\ud800", "context": "b"}', 422, "not UTF-8"),
    "no context": ({"question": "a"}, 422, "body.context"),
    "a number": ({"question": 1, "context": "b"}, 422, "body.question"),
    "an empty question": ({"question": " ", "context": "b"}, 422, "the question is empty"),
    "an empty context": ({"question": "a", "context": "\n"}, 422, "the context is empty"),
    "a long question": (
        {"question": "a" * 20_000, "context": "b"},
        422,
        "the question has more than 10,000",
    ),
    "a long context": ({"question": "a", "context": "b" * 300_000}, 422, "more than 200,000"),
    "more than a window": ({"question": "x " * 900, "context": "y " * 900}, 422, "request: max_"),
    "a list": ([1], 422, "body"),
    "deep": (b"[" * 500_000, 400, ""),
    "10 MB": ({"question": "a", "context": "b" * 10_000_000}, 413, "1,048,576 bytes"),
    "2 MB without a length": ((b"x" * 50_000,) * 40, 413, "1,048,576 bytes"),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_requests_get_one_line(kind: str, port: int) -> None:
    body, expected, message = BAD[kind]

    status, _, reply = send(port, body)

    assert status == expected or (expected == 400 and status == 422), reply
    assert list(reply) == ["error"]
    assert message in reply["error"]
    assert "\n" not in reply["error"]
    assert "Traceback" not in reply["error"]
    assert send(port, ASKED)[0] == 200


@pytest.mark.parametrize("question", ["a" * 20_000, " ", "x " * 900])
def test_a_question_of_a_list_is_named(question: str, port: int) -> None:
    """By its index: too long as a text, empty, or longer than a window."""
    bad = {"question": question, "context": "y " * 900}
    status, _, reply = send(port, [ASKED, ASKED, ASKED, bad, ASKED], "/answers")
    assert status == 422
    assert reply["error"].startswith("question 3: ")


@pytest.mark.parametrize("kind", ["", "text/plain", "application/x-www-form-urlencoded"])
def test_a_missing_content_type_is_said(kind: str, port: int) -> None:
    headers = {"Content-Type": kind} if kind else {}
    status, _, body = get(port, "/answer", "POST", json.dumps(ASKED), **headers)
    assert status == 422
    assert b"send the header Content-Type: application/json" in body


def test_what_is_too_much_or_too_late_is_said(
    model: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = Event()
    release = Event()
    computed = []

    def slow(trained: Trained, pairs: list[tuple[str, str]], *more: Any) -> Any:
        began.set()
        release.wait(60)
        computed.append([question for question, _ in pairs])
        return ask_together(trained, pairs, *more)

    monkeypatch.setattr(server, "ask_together", slow)
    monkeypatch.setattr(web, "WAITING", 1)
    monkeypatch.setattr(web, "SECONDS", 3.0)
    with serving_here(model) as port, ThreadPoolExecutor(2) as pool:
        first = pool.submit(send, port, {**ASKED, "question": "first"})
        assert began.wait(60)  # it is no longer in the queue
        second = pool.submit(send, port, {**ASKED, "question": "second"})
        wait_for(lambda: meter(port, "waiting") == 1)

        status, headers, reply = send(port, ASKED)
        assert status == 503
        assert "too many" in reply["error"]
        assert headers["retry-after"] == "1"
        for request in (first, second):
            status, _, reply = request.result()
            assert status == 504
            assert "no answer within 3 s" in reply["error"]

        # Until the thread is through with the first, there is no room.
        release.set()
        status = 503
        while status == 503:
            status, _, _ = send(port, {**ASKED, "question": "third"})
        assert status == 200
    assert computed == [["first"], ["third"]]  # nobody waited for the second any more


def test_a_client_is_waited_for_until_all_of_its_request_is_there() -> None:
    """Then it waits itself, however long its answer takes."""
    parts: list[Any] = [{"body": b"a", "more_body": True}, {"body": b"b"}]
    since = []

    async def receive() -> Any:
        return parts.pop(0)

    async def read_both(scope: Any, receive: Any, send: Any) -> None:
        for _ in range(2):
            await receive()
            since.append(clients.since["::1", 1])

    clients = web.Clients(read_both)
    asyncio.run(clients({"client": ("::1", 1), "method": "POST"}, receive, Mock()))
    assert math.isfinite(since[0])
    assert since[1] == math.inf
    assert math.isfinite(clients.since["::1", 1])


def test_connections_beyond_the_limit_are_closed_longest_wait_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(web, "CONNECTIONS", 3)
    clients = web.Clients(Mock())
    connections = [Mock(client=("::1", port)) for port in range(6)]
    # The first waits for its answer, the last is new.
    now = time.monotonic()
    waits = (-math.inf, 4.0, 1.0, web.PATIENCE + 1, 3.0)
    clients.since = {("::1", port): now - wait for port, wait in enumerate(waits)}

    clients.close_late(connections)

    closed = [connection.transport.abort.called for connection in connections]
    assert closed == [False, True, False, True, True, False]
    assert set(clients.since) == {("::1", port) for port in range(6)}


ENDLESS = """
import threading, predict
from detalbert.inference import server, web

def never(*_):
    print("it computes", flush=True)
    threading.Event().wait()

web.SECONDS = 300.0  # however busy the machine is
server.ask_together = never
sys.exit(predict.main(sys.argv[1:]))
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it(how: int, local_run: LocalRun, script: Script) -> None:
    """Though the model computes without an end: a line says how many requests are cut off."""
    process, port = start([*script(ENDLESS), "--model", local_run.path, "--serve", "--port", "0"])
    with ThreadPoolExecutor(4) as pool:
        try:
            requests = [pool.submit(send, port, ASKED)]
            assert process.stdout.readline() == "it computes\n"
            requests += [pool.submit(send, port, ASKED) for _ in range(3)]
            wait_for(lambda: meter(port, "waiting") == 3)
            for _ in range(2):
                process.send_signal(how)
                time.sleep(0.3)
            output, error = process.communicate(timeout=60)
        finally:
            process.kill()

    assert process.returncode == 0
    assert output == "stopped\n"
    assert len(error.splitlines()) <= 1
    assert "Traceback" not in error
    if how == signal.SIGTERM:  # a second Ctrl-C waits for nobody
        for request in requests:
            status, _, reply = request.result()
            assert status == 503
            assert reply == {"error": "the server is stopping"}


def test_it_cannot_be_started(
    local_run: LocalRun, port: int, capsys: pytest.CaptureFixture[str], script: Script
) -> None:
    arguments = ["--model", str(local_run.path), "--serve"]
    taken = f"127.0.0.1 port {port}: Address already in use"
    refused([*arguments, "--port", port], taken, capsys)
    refused([*arguments, "--port", "70000"], "port 70000: ", capsys)
    host = "no.such.host.invalid"
    refused([*arguments, "--host", host], f"--serve: {host}", capsys)

    without = f"sys.modules['fastapi'] = None; import predict; sys.exit(predict.main({arguments}))"
    done = subprocess.run(script(without), capture_output=True, text=True, timeout=600)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    problem = "--serve: fastapi is not installed; pip install -r requirements-serve.txt"
    assert problem in done.stderr
