"""The server: answers, limits, and that nothing a client does ends it."""

import contextlib
import http.client
import json
import signal
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import Pipe
from threading import Event, Thread
from typing import Any

import psutil
import pytest

from detalbert.inference import engine, server, web
from detalbert.inference.answering import answer_together
from detalbert.inference.guard import LOCAL
from detalbert.inference.model import Trained
from detalbert.inference.reply import ask
from tests.conftest import ROOT, LocalRun, Script
from tests.fakes.no_models import refused
from tests.fakes.runs import wait_for

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
def serving_here(model: Trained, threshold: float = 0.0, **limits: Any) -> Iterator[int]:
    """The application on a port of this process, with limits of its own."""
    access = limits.pop("access", LOCAL)
    (ours, theirs), (stopped, stop) = Pipe(), Pipe(duplex=False)
    app = server.make_app(model, theirs, server.Limits(**limits), access)
    listener = web.listen("127.0.0.1", 0)
    Thread(target=engine.answer_batches, args=(model, threshold, ours), daemon=True).start()
    thread = Thread(target=web.run, args=(app, listener, False, stopped))
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        stop.close()
        thread.join(30)
        theirs.close()


def start(python: str, *words: Any) -> tuple[subprocess.Popen, int, list[psutil.Process]]:
    """`predict.py --serve` in processes of its own: its command, its port, the two of them."""
    command = [python, "predict.py", "--serve", "--port", "0", *map(str, words)]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe, text=True)
    line = process.stdout.readline()
    assert "serving on http://127.0.0.1:" in line, process.stderr.read()
    port = int(line.split("127.0.0.1:")[1].split()[0])
    open_here = (x for x in psutil.net_connections("tcp4") if x.laddr[1] == port)
    child = psutil.Process(next(x.pid for x in open_here if x.status == psutil.CONN_LISTEN))
    return process, port, [child.parent(), child]


@pytest.fixture(scope="module")
def port(model: Trained) -> Iterator[int]:
    with serving_here(model) as port:
        yield port


def test_it_answers_as_it_describes(port: int, model: Trained) -> None:
    """As the command line does; nothing of the page is from elsewhere."""
    status, _, reply = send(port, ASKED)
    assert status == 200 and reply == ask(model, ASKED["question"], TEXT, 0.0)
    assert server.Reply(**reply).model_dump() == reply
    status, headers, page = get(port, "/")
    assert status == 200 and page == server.PAGE.read_bytes()
    assert "default-src 'none'" in headers["content-security-policy"]
    assert b"http://" not in page and b"https://" not in page
    described = json.loads(get(port, "/openapi.json")[2])
    wanted = "200 400 401 408 413 421 422 503 504".split()
    assert sorted(described["paths"]["/answer"]["post"]["responses"]) == wanted
    assert "threshold" in json.dumps(described["components"])
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


def test_what_is_too_much_or_too_late_is_said(model: Trained, monkeypatch: Any) -> None:
    release, began, answered = Event(), Event(), []

    def slow(trained: Trained, asked: Any, *more: Any) -> Any:
        began.set()
        release.wait(60)
        answered.append([question for question, _ in asked])
        return answer_together(trained, asked, *more)

    monkeypatch.setattr(engine, "answer_together", slow)
    with serving_here(model, waiting=1, seconds=3.0) as port, ThreadPoolExecutor(2) as pool:
        first = pool.submit(send, port, {**ASKED, "question": "first"})
        assert began.wait(60)  # it is no longer in the queue
        second = pool.submit(send, port, {**ASKED, "question": "second"})
        wait_for(lambda: meter(port, "waiting") == 1)
        status, headers, reply = send(port, ASKED)
        assert status == 503 and "too many" in reply["error"] and headers["retry-after"] == "1"
        with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
            head = "POST /answer HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            client.sendall(f"{head}Content-Length: 100\r\n\r\n{{".encode())
            assert b" 408 " in client.recv(1000)  # the rest of the request did not arrive
        for status, _, reply in (first.result(), second.result()):
            assert status == 504 and "no answer within 3 s" in reply["error"]
        release.set()
        third = iter(lambda: send(port, {**ASKED, "question": "third"})[0], 200)
        assert set(third) <= {503}  # until the thread is through with the first
        assert answered == [["first"], ["third"]]  # nobody waited for the second any more


@pytest.mark.parametrize("ended", ["model", "web"])
def test_its_two_processes_end_together(ended: str, local_run: LocalRun, python: str) -> None:
    process, port, both = start(python, "--model", local_run.path)
    assert send(port, ASKED)[0] == 200
    both[ended == "web"].kill()
    _, err = process.communicate(timeout=60)
    assert psutil.wait_procs(both, timeout=60)[1] == []
    if ended == "web":
        line = "predict.py: error: --serve: the process that takes requests ended (-9)\n"
        assert (process.returncode, err) == (2, line)


@pytest.mark.parametrize(("how", "busy"), [(signal.SIGINT, True), (signal.SIGTERM, False)])
def test_a_signal_ends_it(how: int, busy: bool, local_run: LocalRun, python: str) -> None:
    """To both processes, as a terminal sends it, while they are busy: one line says how many
    requests are cut off. Or to the command alone."""
    process, port, both = start(python, "--model", local_run.path, "--threshold", "best")
    with ThreadPoolExecutor(4) as pool:
        try:
            assert send(port, ASKED)[2]["threshold"] == local_run.best["best_f1_thresh"]
            if busy:
                long = {**ASKED, "context": TEXT * (190_000 // len(TEXT))}
                for _ in range(4):
                    pool.submit(send, port, long)
                wait_for(lambda: meter(port, "waiting") == 3)
            for one in both * 2 if busy else [process]:
                one.send_signal(how)
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
