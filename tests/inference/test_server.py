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

import predict
from detalbert.inference import engine, server, web
from detalbert.inference.answering import answer_together
from detalbert.inference.guard import LOCAL
from detalbert.inference.model import Trained
from detalbert.inference.reply import ask
from tests.conftest import ROOT, LocalRun, Script
from tests.fakes.runs import wait_for

TEXT = "The Kalonda carried tar. Ililra Voruro was captain of the Garlen. 東京 came late! 🚢 sank."
ASKED = {"question": "Which ship carried tar?", "context": TEXT}
JSON = {"Content-Type": "application/json"}
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
    status, told, said = get(port, path, "POST", data, **JSON, **headers)
    return status, told, json.loads(said)


def waiting(port: int) -> float:
    """How many questions the server says wait for the model."""
    text = get(port, "/metrics")[2].decode()
    return float(text.partition("\nwaiting ")[2].split()[0])


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
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, cwd=ROOT, **streams)
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


def test_it_answers_as_the_command_line_does(port: int, model: Trained) -> None:
    status, _, reply = send(port, ASKED)
    expected = ask(model, ASKED["question"], TEXT, 0.0)
    assert status == 200 and reply == json.loads(json.dumps(expected))
    assert server.Reply(**reply).model_dump() == reply  # as the endpoint's description says


def test_the_page_and_the_description_of_the_endpoint(port: int) -> None:
    status, headers, page = get(port, "/")
    assert status == 200 and page == server.PAGE.read_bytes()
    assert "default-src 'none'" in headers["content-security-policy"]
    assert b"http://" not in page and b"https://" not in page  # nothing from elsewhere
    described = json.loads(get(port, "/openapi.json")[2])
    wanted = {"200", "400", "401", "408", "413", "421", "422", "503", "504"}
    assert described["paths"]["/answer"]["post"]["responses"].keys() == wanted
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


def test_a_full_queue_is_said_at_once_and_what_comes_too_late_is_not_waited_for(
    model: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
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
        wait_for(lambda: waiting(port) == 1)
        status, headers, reply = send(port, ASKED)
        assert status == 503 and "too many" in reply["error"] and headers["retry-after"] == "1"
        with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
            head = "POST /answer HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            client.sendall(f"{head}Content-Length: 100\r\n\r\n{{".encode())
            assert b" 408 " in client.recv(1000)  # the rest of the request did not arrive
        for status, _, reply in (first.result(), second.result()):
            assert status == 504 and "no answer within 3 s" in reply["error"]
        release.set()
        statuses = iter(lambda: send(port, {**ASKED, "question": "third"})[0], 200)
        assert set(statuses) <= {503}  # until the thread is through with the first
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


@pytest.mark.parametrize(
    ("how", "busy"), [(signal.SIGINT, True), (signal.SIGTERM, True), (signal.SIGTERM, False)]
)
def test_a_signal_ends_it_cleanly(
    how: signal.Signals, busy: bool, local_run: LocalRun, python: str
) -> None:
    """As a terminal and a scheduler send it, to both processes, while they are busy: one line says
    how many requests are cut off. Or to the command alone."""
    process, port, both = start(python, "--model", local_run.path, "--threshold", "best")
    with ThreadPoolExecutor(4) as pool:
        try:
            assert send(port, ASKED)[2]["threshold"] == local_run.best["best_f1_thresh"]
            if busy:
                long = {**ASKED, "context": TEXT * (190_000 // len(TEXT))}
                for _ in range(4):
                    pool.submit(send, port, long)
                wait_for(lambda: waiting(port) == 3)
            for one in both * 2 if busy else [process]:
                one.send_signal(how)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, out) == (0, "stopped\n")
    assert len(err.splitlines()) <= busy and "Traceback" not in err, err


def test_a_port_that_is_taken_and_a_framework_that_is_missing(
    local_run: LocalRun, port: int, capsys: Any, script: Script
) -> None:
    arguments = ["--model", str(local_run.path), "--serve"]
    for words, message in {
        ("--port", str(port)): f"127.0.0.1 port {port}: Address already in use",
        ("--port", "70000"): "port 70000: ",
        ("--host", "no.such.host.invalid"): "--serve: no.such.host.invalid",
    }.items():
        assert predict.main([*arguments, *words]) == 2
        error = capsys.readouterr().err
        assert message in error and len(error.splitlines()) == 1
    without = f"sys.modules['fastapi'] = None; import predict; sys.exit(predict.main({arguments}))"
    done = subprocess.run(script(without), capture_output=True, text=True, timeout=600)
    said = "--serve: fastapi is not installed; pip install -r requirements-serve.txt"
    assert (done.returncode, done.stdout) == (2, "") and said in done.stderr
    assert len(done.stderr.splitlines()) == 1
