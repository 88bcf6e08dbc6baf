"""The server: answers, limits, and that nothing a client does ends it."""

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import Pipe
from threading import Thread
from typing import Any

import psutil
import pytest

import predict
from detalbert.inference import engine, server
from detalbert.inference.answering import answer_together
from detalbert.inference.guard import LOCAL
from detalbert.inference.model import Trained
from detalbert.inference.reply import ask
from tests.conftest import ROOT, LocalRun
from tests.fakes.serving import serving

TEXT = "The Kalonda carried tar. Ililra Voruro was captain of the Garlen. 東京 came late! 🚢 sank."
ASKED = {"question": "Which ship carried tar?", "context": TEXT}
Reply = tuple[int, dict[str, str], Any]


def connected(port: int, timeout: float = 300) -> Any:
    return contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=timeout))


def send(port: int, body: Any, timeout: float = 300, **headers: str) -> Reply:
    """POST to /answer; the status, headers and JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    with connected(port, timeout) as connection:
        connection.request("POST", "/answer", data, {"Content-Type": "application/json", **headers})
        response = connection.getresponse()
        return response.status, dict(response.headers), json.loads(response.read())


def get(port: int, path: str) -> tuple[int, dict[str, str], bytes]:
    with connected(port) as connection:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, dict(response.headers), response.read()


@contextlib.contextmanager
def serving_here(model: Trained, threshold: float = 0.0, **limits: Any) -> Iterator[int]:
    """The application on a port of this process, with limits of its own."""
    access = limits.pop("access", LOCAL)
    ours, theirs = Pipe()
    Thread(target=engine.answer_batches, args=(model, threshold, ours), daemon=True).start()
    with theirs, serving(server.make_app(model, theirs, server.Limits(**limits), access)) as port:
        yield port


def start(python: str, *words: Any) -> tuple[subprocess.Popen, int]:
    """`predict.py --serve` in a process of its own, and its port."""
    command = [python, "predict.py", "--serve", "--port", "0", *map(str, words)]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, cwd=ROOT, start_new_session=True, **streams)
    line = process.stdout.readline()
    assert "serving on http://127.0.0.1:" in line, process.stderr.read()
    return process, int(line.split("127.0.0.1:")[1].split()[0])


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
    described = json.loads(get(port, "/openapi.json")[2])["paths"]["/answer"]["post"]
    wanted = {"200", "400", "401", "408", "413", "421", "422", "503", "504"}
    assert described["responses"].keys() == wanted
    assert "threshold" in json.dumps(json.loads(get(port, "/openapi.json")[2])["components"])


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
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_requests_get_one_line(kind: str, port: int) -> None:
    body, wanted, message = BAD[kind]
    status, _, reply = send(port, body)
    assert status == wanted or (wanted == 400 and status == 422), reply
    assert list(reply) == ["error"] and message in reply["error"]
    assert "\n" not in reply["error"] and "Traceback" not in reply["error"]
    assert send(port, ASKED)[0] == 200


def test_a_body_without_a_length_is_counted(port: int) -> None:
    def pieces() -> Iterator[bytes]:
        for _ in range(40):
            yield b"x" * 50_000

    with connected(port) as connection:
        headers = {"Content-Type": "application/json", "Transfer-Encoding": "chunked"}
        connection.request("POST", "/answer", pieces(), headers, encode_chunked=True)
        response = connection.getresponse()
        assert response.status == 413 and "1,048,576 bytes" in json.loads(response.read())["error"]


def test_unknown_places_and_methods(port: int) -> None:
    assert (get(port, "/etc/passwd")[0], get(port, "/answer")[0]) == (404, 405)
    assert json.loads(get(port, "/nowhere")[2]) == {"error": "Not Found"}


def test_200_at_once(model: Trained) -> None:
    with serving_here(model, waiting=20, seconds=120) as port:
        barrier = threading.Barrier(200)

        def one(number: int) -> Reply:
            barrier.wait(120)
            return send(port, {**ASKED, "question": f"{ASKED['question']} {number}"}, timeout=300)

        with ThreadPoolExecutor(200) as pool:
            replies = list(pool.map(one, range(200)))
        statuses = [status for status, _, _ in replies]
        assert set(statuses) <= {200, 503} and statuses.count(200) >= 20
        for number, (status, headers, reply) in enumerate(replies):
            if status == 200:
                assert reply["question"].endswith(f"? {number}")  # nobody else's answer
            else:
                assert headers["retry-after"] == "1" and "too many questions" in reply["error"]
        assert send(port, ASKED)[0] == 200


def test_a_full_queue_is_said_at_once_and_an_answer_too_late_is_not_waited_for(
    model: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    release, began, answered = threading.Event(), threading.Event(), []

    def slow(trained: Trained, asked: Any, *more: Any) -> Any:
        began.set()
        release.wait(60)
        answered.append([question for question, _ in asked])
        return answer_together(trained, asked, *more)

    submit, queued = server.Worker.submit, threading.Semaphore(0)

    def submit_and_tell(*arguments: Any) -> None:
        submit(*arguments)
        queued.release()

    monkeypatch.setattr(engine, "answer_together", slow)
    monkeypatch.setattr(server.Worker, "submit", submit_and_tell)
    with serving_here(model, waiting=1, seconds=10.0) as port, ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(send, port, {**ASKED, "question": "first"})]
        assert queued.acquire(timeout=60) and began.wait(60)  # it is no longer in the queue
        waiting.append(pool.submit(send, port, {**ASKED, "question": "second"}))
        assert queued.acquire(timeout=60)
        status, headers, reply = send(port, ASKED)
        assert status == 503 and "too many" in reply["error"] and headers["retry-after"] == "1"
        for future in waiting:
            status, _, reply = future.result()
            assert status == 504 and "no answer within 10 s" in reply["error"]
        release.set()
        statuses = iter(lambda: send(port, {**ASKED, "question": "third"})[0], 200)
        assert set(statuses) <= {503}  # until the thread is through with the first
        assert answered == [["first"], ["third"]]  # nobody waited for the second any more


def test_a_request_that_does_not_arrive_is_given_up(model: Trained) -> None:
    with serving_here(model, seconds=10.0) as port:
        with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
            head = "POST /answer HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            client.sendall(f"{head}Content-Length: 100\r\n\r\n{{".encode())
            assert b" 408 " in client.recv(1000)
        assert send(port, ASKED)[0] == 200


def test_a_failure_of_the_model_ends_one_request(
    model: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "answer_together", lambda *_: 1 / 0)
    with serving_here(model) as port:
        status, _, reply = send(port, ASKED)
        assert status == 500 and "the server's log says how" in reply["error"]
        monkeypatch.setattr(engine, "answer_together", answer_together)
        assert send(port, ASKED)[0] == 200


def test_its_two_processes_end_together(local_run: LocalRun, real_python: str) -> None:
    for ended in ("model", "web"):
        process, port = start(real_python, "--model", local_run.path)
        (web,) = psutil.Process(process.pid).children()
        assert send(port, ASKED)[0] == 200
        (process if ended == "model" else web).kill()
        _, err = process.communicate(timeout=60)
        psutil.wait_procs([web], timeout=60)
        assert not web.is_running()
        if ended == "web":
            line = "predict.py: error: --serve: the process that takes requests ended (-9)\n"
            assert (process.returncode, err) == (2, line)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_cleanly(local_run: LocalRun, how: signal.Signals, python: str) -> None:
    process, port = start(python, "--model", local_run.path, "--threshold", "best")
    try:
        status, _, reply = send(port, ASKED)
        assert status == 200 and reply["threshold"] == local_run.best["best_f1_thresh"]
        process.send_signal(how)
        out, err = process.communicate(timeout=600)
    finally:
        process.kill()
    assert (process.returncode, out, err) == (0, "stopped\n", "")


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_both_processes_while_they_are_busy(
    local_run: LocalRun, how: signal.Signals, real_python: str
) -> None:
    """As a terminal and a scheduler send it; one line says how many requests are cut off."""
    process, port = start(real_python, "--model", local_run.path)
    long = {"question": "Which ship carried tar?", "context": TEXT * (190_000 // len(TEXT))}
    with ThreadPoolExecutor(4) as pool:
        for _ in range(4):
            pool.submit(send, port, long, timeout=60)
        time.sleep(1)
        os.killpg(process.pid, how)
        os.killpg(process.pid, how)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "stopped\n")
    assert len(err.splitlines()) <= 1 and "Traceback" not in err, err


def test_a_port_that_is_taken_and_a_framework_that_is_missing(
    local_run: LocalRun, port: int, tmp_path: Any, capsys: Any, real_python: str
) -> None:
    for words, message in {
        ("--port", str(port)): f"127.0.0.1 port {port}: Address already in use",
        ("--port", "70000"): "port 70000: ",
        ("--host", "no.such.host.invalid"): "--serve: no.such.host.invalid",
    }.items():
        assert predict.main(["--model", str(local_run.path), "--serve", *words]) == 2
        error = capsys.readouterr().err
        assert message in error and len(error.splitlines()) == 1
    (tmp_path / "fastapi.py").write_text("raise ImportError('gone', name='fastapi')")
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [real_python, "predict.py", "--serve", "--model", str(local_run.path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, env=env)
    assert done.returncode == 2 and done.stdout == "" and len(done.stderr.splitlines()) == 1
    said = "--serve: fastapi is not installed; pip install -r requirements-serve.txt"
    assert said in done.stderr
