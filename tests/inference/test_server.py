"""The server: answers, errors, limits, the token, questions that wait, signals."""

import contextlib
import http.client
import json
import signal
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from threading import Event, Thread

import pytest

from detalbert.errors import UserError
from detalbert.inference import server
from detalbert.inference.reply import ask, ask_together
from tests.fakes.no_models import refused
from tests.fakes.runs import wait_for

TEXT = "The Kalonda carried tar. Ililra Voruro was captain of the Garlen. 東京 came late! 🚢 sank."
ASKED = {"question": "Which ship carried tar?", "context": TEXT}
JSON = {"Content-Type": "application/json"}
TOKEN = {"Authorization": "Bearer secret"}


def get(port, path, method="GET", body=None, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    with contextlib.closing(connection):
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        return response.status, dict(response.headers), response.read()


def send(port, body, path="/answer", **headers):
    """POST; return the status and JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    status, _, content = get(port, path, "POST", data, **(JSON | headers))
    return status, json.loads(content)


def meter(port, name):
    """Return a metric; "waiting" is of the questions that wait for the model."""
    text = get(port, "/metrics")[2].decode()
    return float(text.partition(f"\n{name} ")[2].split()[0])


@contextlib.contextmanager
def serving_here(model, threshold=0.0, **access):
    """Serve the application on a port of this process."""
    served = server.make_server(server.make_app(model, threshold, **access))
    listener = server.listen("127.0.0.1", 0)
    thread = Thread(target=served.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        served.should_exit = True
        thread.join(300)


@pytest.fixture(scope="module")
def port(model):
    with serving_here(model) as port:
        yield port


@pytest.fixture(scope="module")
def locked_port(model):
    with serving_here(model, token="secret") as port:
        yield port


def test_it_answers_as_the_command_line_does(port, model):
    expected = asdict(ask(model, ASKED["question"], TEXT, 0.0))
    assert send(port, ASKED) == (200, expected)
    health = json.loads(get(port, "/health")[2])
    assert health["name"] == model.name
    assert health["max_context"] == server.CONTEXT
    assert meter(port, "answer_seconds_count") >= 1


BAD = {
    "not JSON": (b"{", 422, "JSON"),
    "half a character": (b'{"question": "\\ud800", "context": "b"}', 422, "body.question"),
    "no context": ({"question": "a"}, 422, "body.context"),
    "an empty context": ({"question": "a", "context": "\n"}, 422, "body.context"),
    "a long context": ({"question": "a", "context": "b" * 300_000}, 422, "at most 200000"),
    "more than a window": ({"question": "x " * 900, "context": "y " * 900}, 422, "max_seq"),
    "10 MB": ({"question": "a", "context": "b" * 10_000_000}, 413, "Content Too Large"),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_requests_get_one_line(kind, port):
    body, expected, message = BAD[kind]
    with contextlib.suppress(ConnectionError):  # what is still sent is not read
        status, reply = send(port, body)
        assert status == expected, reply
        assert list(reply) == ["error"]
        assert message in reply["error"]
        assert "\n" not in reply["error"]
    assert send(port, ASKED)[0] == 200


def test_only_with_the_token_it_answers(locked_port):
    for scheme in ("Bearer", "bearer"):  # RFC 9110: any case
        assert send(locked_port, ASKED, Authorization=f"{scheme} secret")[0] == 200
    for value in ("", "secret", "Bearer", "Bearer secre", "basic secret"):
        for path in ("/answer", "/metrics", "/nowhere"):
            status, reply = send(locked_port, ASKED, path, Authorization=value)
            assert status == 401
            assert "Authorization: Bearer TOKEN" in reply["error"]
    for path in server.OPEN:
        assert get(locked_port, path)[0] == 200


def test_only_this_machine_s_names_are_served(port, model):
    for host in ("LOCALHOST:80", "127.0.0.1:9", "[::1]:8000"):
        assert get(port, "/health", Host=host)[0] == 200
    for host in ("evil.example", "127.0.0.1.evil.example", "0.0.0.0"):
        assert get(port, "/health", Host=host)[0] == 400
    with serving_here(model, loopback=False) as open_port:
        assert get(open_port, "/health", Host="ask.example")[0] == 200


@pytest.mark.parametrize("method", ["GET /", "HEAD /", "POST /answer", "PUT /x", "GET /metrics"])
def test_what_is_sent_ahead_or_not_read_ends_its_connection(method, locked_port):
    """One response at most for fifty requests without a token."""
    request = f"{method} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{{}}".encode()
    received = b""
    with socket.create_connection(("127.0.0.1", locked_port), timeout=300) as client:
        with contextlib.suppress(OSError):
            client.sendall(request * 50)
        with contextlib.suppress(ConnectionError):
            while piece := client.recv(1 << 16):
                received += piece
    assert received.count(b"HTTP/1.1 ") <= 1


class Held:
    """`ask_together`, each call held until it is let go; notes how many questions a call had."""

    def __init__(self):
        self.sizes = []
        self.questions = []
        self.go = Event()

    def __call__(self, trained, pairs, threshold):
        self.sizes.append(len(pairs))
        self.questions += [question for question, _ in pairs]
        assert self.go.wait(300)
        if any(question == "bad" for question, _ in pairs):
            raise RuntimeError("one of them")
        return ask_together(trained, pairs, threshold)

    def start(self, pool, port, questions):
        """Send a question for each thread of the server; return the requests, which are held."""
        requests = []
        for number in range(server.THREADS):
            requests.append(pool.submit(send, port, questions[number]))
            # It found a thread idle: nothing is waited for.
            wait_for(lambda: self.sizes == [1] * len(requests))
        return requests

    def ask(self, port, questions):
        """Return statuses and replies; all but the first two come while those are held."""
        with ThreadPoolExecutor(len(questions)) as pool:
            requests = self.start(pool, port, questions)
            later = questions[len(requests) :]
            requests += [pool.submit(send, port, question) for question in later]
            wait_for(lambda: meter(port, "waiting") == len(later))
            self.go.set()
            return [request.result() for request in requests]


@pytest.fixture
def held(monkeypatch):
    held = Held()
    monkeypatch.setattr(server, "ask_together", held)
    monkeypatch.setattr(server, "SECONDS", 300.0)  # however busy the machine is
    return held


def test_questions_that_wait_share_rows(model, held):
    """Two batches are answered at a time, each of at most some questions."""
    questions = [{**ASKED, "question": f"What did ship {number} carry?"} for number in range(20)]
    with serving_here(model) as port:
        replies = held.ask(port, questions)
    assert held.sizes[:2] == [1, 1]
    assert len(held.sizes) == 4
    assert max(held.sizes) <= server.TOGETHER
    for (status, reply), question in zip(replies, questions, strict=True):
        assert status == 200
        expected = asdict(ask(model, question["question"], TEXT, 0.0))
        assert reply["probability"] == pytest.approx(expected["probability"], abs=1e-4)
        for name in ("question", "answer", "abstained", "start", "end"):
            assert reply[name] == expected[name]


def test_a_question_that_fails_fails_alone(model, held):
    with serving_here(model) as port:
        replies = held.ask(port, [ASKED, ASKED, {**ASKED, "question": "bad"}, ASKED])
    assert [status for status, _ in replies] == [200, 200, 500, 200]
    assert "the server's log says how" in replies[2][1]["error"]


def test_what_is_too_much_or_too_late_is_not_computed(model, held, monkeypatch):
    monkeypatch.setattr(server, "WAITING", 1)
    with serving_here(model) as port, ThreadPoolExecutor(2) as pool:
        first, second = held.start(pool, port, [ASKED, ASKED])  # they are no longer in the queue
        monkeypatch.setattr(server, "SECONDS", 0.1)
        assert send(port, {**ASKED, "question": "late"})[0] == 504
        status, reply = send(port, {**ASKED, "question": "too much"})
        assert status == 503
        assert "too many" in reply["error"]
        monkeypatch.setattr(server, "SECONDS", 300.0)
        held.go.set()
        assert first.result()[0] == second.result()[0] == 200
        wait_for(lambda: send(port, ASKED)[0] == 200)
    assert set(held.questions) == {ASKED["question"]}


def test_the_token_is_in_a_file_or_the_environment(tmp_path, monkeypatch):
    monkeypatch.delenv("ALBERT_TOKEN", raising=False)
    assert server.read_token(None) is None
    monkeypatch.setenv("ALBERT_TOKEN", "of the environment")
    (tmp_path / "token").write_text("of the file\n")
    (tmp_path / "empty").write_text("\n")
    assert server.read_token(None) == "of the environment"
    assert server.read_token(tmp_path / "token") == "of the file"
    with pytest.raises(UserError, match="the token: empty"):
        server.read_token(tmp_path / "empty")


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it(how, local_run, script):
    """Though the model computes without an end."""
    endless = """
import threading, predict
from detalbert.inference import server
server.ask_together = lambda *_: threading.Event().wait()
sys.exit(predict.main(sys.argv[1:]))
"""
    command = [*script(endless), "--model", str(local_run.path), "--serve", "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline()
        assert "): programs on this machine may ask, without a token; Ctrl-C ends it" in line
        port = int(line.split("127.0.0.1:")[1].split()[0])
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port)) as connection:
            connection.request("POST", "/answer", json.dumps(ASKED), JSON)
            wait_for(lambda: get(port, "/health")[0] == 200)
            process.send_signal(how)
            output, error = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 0
    assert output == "stopped\n"
    assert "Traceback" not in error


def test_it_cannot_be_started(local_run, port, capsys, script):
    arguments = ["--model", str(local_run.path), "--serve"]
    taken = f"127.0.0.1 port {port}: Address already in use"
    refused([*arguments, "--port", port], taken, capsys)
    refused([*arguments, "--host", "no.such.invalid"], "--serve: no.such.invalid", capsys)

    without = f"sys.modules['fastapi'] = None; import predict; sys.exit(predict.main({arguments}))"
    done = subprocess.run(script(without), capture_output=True, text=True, timeout=600)
    assert done.returncode == 2
    assert "--serve: fastapi is not installed; pip install" in done.stderr
