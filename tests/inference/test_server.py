"""The server: answers, limits, and that nothing a client does ends it."""

import contextlib
import http.client
import json
import resource
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from threading import Event, Thread
from typing import Any

import psutil
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
Reply = tuple[int, dict[str, str], Any]


def connected(port: int, timeout: float = 300) -> Any:
    return contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=timeout))


def get(port: int, path: str, method: str = "GET", body: Any = None, **headers: str) -> Reply:
    with connected(port) as connection:
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        return response.status, dict(response.headers), response.read()


def send(port: int, body: Any, path: str = "/answer", **headers: str) -> Reply:
    """POST; the status, headers and JSON. A tuple is sent in pieces, without a length."""
    data = body if isinstance(body, bytes | tuple) else json.dumps(body).encode()
    headers["Content-Type"] = "application/json"
    status, told, said = get(port, path, "POST", data, **headers)
    return status, told, json.loads(said)


def meter(port: int, name: str) -> float:
    """What the server counted; "waiting" is of the questions that wait for the model."""
    text = get(port, "/metrics")[2].decode()
    return float(text.partition(f"\n{name} ")[2].split()[0])


@contextlib.contextmanager
def serving_here(model: Trained, threshold: float = 0.0, **access: Any) -> Iterator[int]:
    """The application on a port of this process."""
    served = web.make_server(server.make_app(model, threshold, **access))
    listener = web.listen("127.0.0.1", 0)
    thread = Thread(target=served.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        served.should_exit = True
        thread.join(30)


def start(python: str, *words: Any) -> tuple[subprocess.Popen, int, psutil.Process]:
    """`predict.py --serve` in a process of its own: its command, its port, the process."""
    command = [python, "predict.py", "--serve", "--port", "0", *map(str, words)]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe, text=True)
    line = process.stdout.readline()
    assert "serving on http://127.0.0.1:" in line, process.stderr.read()
    assert "): programs on this machine may ask, without a token; Ctrl-C ends it" in line
    port = int(line.split("127.0.0.1:")[1].split()[0])
    open_here = (x for x in psutil.net_connections("tcp4") if x.laddr[1] == port)
    pid = next(x.pid for x in open_here if x.status == psutil.CONN_LISTEN)
    return process, port, psutil.Process(pid)


@pytest.fixture(scope="module")
def port(model: Trained) -> Iterator[int]:
    with serving_here(model) as port:
        yield port


def test_it_answers_as_it_describes(port: int, model: Trained) -> None:
    """As the command line does; nothing of the page is from elsewhere."""
    status, _, reply = send(port, ASKED)
    assert status == 200 and reply == asdict(ask(model, ASKED["question"], TEXT, 0.0))
    status, headers, page = get(port, "/")
    assert status == 200 and page == server.PAGE.read_bytes()
    assert "default-src 'none'" in headers["content-security-policy"]
    assert b"http://" not in page and b"https://" not in page
    described = json.loads(get(port, "/openapi.json")[2])
    wanted = "200 400 401 408 413 421 422 503 504".split()
    assert sorted(described["paths"]["/answer"]["post"]["responses"]) == wanted
    assert list(described["components"]["schemas"]["Reply"]["properties"]) == list(reply)
    assert (get(port, "/etc/passwd")[0], get(port, "/answer")[0]) == (404, 405)
    assert json.loads(get(port, "/nowhere")[2]) == {"error": "Not Found"}


BAD: dict[str, tuple[Any, int, str]] = {
    "not JSON": (b"{", 422, "JSON"),
    "nothing": (b"", 422, "required"),
    "not UTF-8": (b'{"question": "\xe9", "context": "b"}', 400, ""),
    "half a character": (b'{"question": "\\ud800", "context": "b"}', 422, "not UTF-8"),
    "no context": ({"question": "a"}, 422, "body.context"),
    "a number": ({"question": 1, "context": "b"}, 422, "body.question"),
    "an empty question": ({"question": " ", "context": "b"}, 422, "the question is empty"),
    "an empty context": ({"question": "a", "context": "\n"}, 422, "the context is empty"),
    "a long question": ({"question": "a" * 20_000, "context": "b"}, 422, "the question has 20,000"),
    "a long context": ({"question": "a", "context": "b" * 300_000}, 422, "200,000 at most"),
    "a list": ([1], 422, "body"),
    "deep": (b"[" * 500_000, 400, ""),
    "10 MB": ({"question": "a", "context": "b" * 10_000_000}, 413, "1,048,576 bytes"),
    "2 MB without a length": ((b"x" * 50_000,) * 40, 413, "1,048,576 bytes"),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_requests_get_one_line(kind: str, port: int) -> None:
    body, wanted, message = BAD[kind]
    status, _, reply = send(port, body)
    assert status == wanted or (wanted == 400 and status == 422), reply
    assert list(reply) == ["error"] and message in reply["error"]
    assert "\n" not in reply["error"] and "Traceback" not in reply["error"]
    assert send(port, ASKED)[0] == 200


def cut_off(port: int, trickled: bool) -> bytes:
    """The response to a request that does not arrive in full."""
    head = "POST /answer HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=0.1 if trickled else 60) as client:
        for byte in head.encode() if trickled else ():
            client.sendall(bytes([byte]))
            with contextlib.suppress(TimeoutError):
                return client.recv(1000)
        client.sendall(f"{head}Content-Length: 100\r\n\r\n{{".encode())
        return client.recv(1000)


def test_what_is_too_much_or_too_late_is_said(model: Trained, monkeypatch: Any) -> None:
    release, began, answered = Event(), Event(), []

    def slow(trained: Trained, asked: Any, *more: Any) -> Any:
        began.set()
        release.wait(60)
        answered.append([question for question, _ in asked])
        return ask_together(trained, asked, *more)

    monkeypatch.setattr(server, "ask_together", slow)
    monkeypatch.setattr(web, "WAITING", 1)
    monkeypatch.setattr(web, "SECONDS", 3.0)
    with serving_here(model) as port, ThreadPoolExecutor(2) as pool:
        first = pool.submit(send, port, {**ASKED, "question": "first"})
        assert began.wait(60)  # it is no longer in the queue
        second = pool.submit(send, port, {**ASKED, "question": "second"})
        wait_for(lambda: meter(port, "waiting") == 1)
        status, headers, reply = send(port, ASKED)
        assert status == 503 and "too many" in reply["error"] and headers["retry-after"] == "1"
        for trickled in (False, True):  # the rest of the body, and of the headers, is missing
            assert b" 408 " in cut_off(port, trickled)
        for status, _, reply in (first.result(), second.result()):
            assert status == 504 and "no answer within 3 s" in reply["error"]
        release.set()
        third = iter(lambda: send(port, {**ASKED, "question": "third"})[0], 200)
        assert set(third) <= {503}  # until the thread is through with the first
        assert answered == [["first"], ["third"]]  # nobody waited for the second any more


def flood(port: int) -> str:
    """400 MB of header lines, up to where the server refuses them."""
    address = ("127.0.0.1", port)
    with socket.create_connection(address, timeout=60) as client, contextlib.suppress(OSError):
        client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n")
        for _ in range(400):
            client.sendall((b"A: " + b"a" * 95 + b"\r\n") * 10_000)
        return "all of it was read"
    return "refused"


def test_an_attack_costs_little(local_run: LocalRun, python: str) -> None:
    """Neither headers without an end, nor connections without a request, nor a list of a million
    faults, nor clients that leave take memory or stop it from answering."""
    process, port, served = start(python, "--model", local_run.path)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 2000)), hard))
    long = json.dumps({**ASKED, "context": TEXT * (100_000 // len(TEXT))}).encode()
    memory = []

    def look() -> None:
        assert get(port, "/health")[0] == 200
        memory.append(served.memory_info().rss >> 20)

    try:
        assert send(port, {**ASKED, "context": TEXT * 1000})[0] == 200  # it has computed a long one
        look()
        assert flood(port) == "refused"
        look()
        with contextlib.ExitStack() as idle:
            for _ in range(1500):
                client = socket.create_connection(("127.0.0.1", port), timeout=60)
                idle.enter_context(client).sendall(b"GET / HTTP/1.1\r\nHo")
            look()
            assert served.num_fds() < 700
        status, _, reply = send(port, b"[" + b"0," * (1 << 19) + b"0]", "/answers")
        assert status == 413
        status, _, reply = send(port, b"[" + b"0," * ((1 << 19) - 2) + b"0]", "/answers")
        assert status == 422 and len(reply["error"]) < 200
        look()
        for _ in range(30):
            with connected(port) as leaving:
                leaving.request("POST", "/answer", long, {"Content-Type": "application/json"})
            look()
        assert send(port, ASKED)[0] == 200
        look()
        assert meter(port, 'requests_total{path="/answer",status="200"}') <= 3  # two, and one begun
    finally:
        process.kill()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert max(memory) < memory[0] + 50, memory


@pytest.mark.parametrize(("how", "busy"), [(signal.SIGINT, True), (signal.SIGTERM, False)])
def test_a_signal_ends_it(how: int, busy: bool, local_run: LocalRun, python: str) -> None:
    """Twice while it is busy: one line says how many requests are cut off. Or once."""
    process, port, served = start(python, "--model", local_run.path, "--threshold", "best")
    with ThreadPoolExecutor(4) as pool:
        try:
            assert send(port, ASKED)[2]["threshold"] == local_run.best["best_f1_thresh"]
            if busy:
                long = {**ASKED, "context": TEXT * (190_000 // len(TEXT))}
                for _ in range(4):
                    pool.submit(send, port, long)
                wait_for(lambda: meter(port, "waiting") == 3)
            for one in [served] * 2 if busy else [process]:
                one.send_signal(how)
                time.sleep(0.3)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, out) == (0, "stopped\n")
    assert len(err.splitlines()) <= busy and "Traceback" not in err, err


def test_it_cannot_be_started(local_run: LocalRun, port: int, capsys: Any, script: Script) -> None:
    arguments = ["--model", str(local_run.path), "--serve"]
    taken = f"127.0.0.1 port {port}: Address already in use"
    refused([*arguments, "--port", port], taken, capsys)
    refused([*arguments, "--port", "70000"], "port 70000: ", capsys)
    host = "no.such.host.invalid"
    refused([*arguments, "--host", host], f"--serve: {host}", capsys)
    without = f"sys.modules['fastapi'] = None; import predict; sys.exit(predict.main({arguments}))"
    done = subprocess.run(script(without), capture_output=True, text=True, timeout=600)
    said = "--serve: fastapi is not installed; pip install -r requirements-serve.txt"
    assert (done.returncode, done.stdout) == (2, "") and said in done.stderr
    assert len(done.stderr.splitlines()) == 1
