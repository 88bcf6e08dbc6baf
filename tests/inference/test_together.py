"""Questions that wait are answered together, also in a crowd; whom the server answers."""

import contextlib
import json
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from detalbert.engine.evaluation import evaluate_row
from detalbert.errors import UserError
from detalbert.inference import answering, server, web
from detalbert.inference.model import Trained
from detalbert.inference.reply import ask, ask_together
from detalbert.inference.web import LOOPBACK, describe_access, read_token, served_names
from detalbert.squad.questions import read_questions
from detalbert.squad.windows import Example
from tests.conftest import ROOT
from tests.fakes.runs import wait_for
from tests.fakes.trained import LocalRun
from tests.inference.test_attacks import listening
from tests.inference.test_server import (
    ASKED,
    JSON,
    connected,
    get,
    meter,
    send,
    serving_here,
    start,
)

TEXT = ASKED["context"]
OTHER = "The Belmira was loaded with salt. " * 3
QUESTIONS = [
    {"question": f"What did ship {number} carry?", "context": OTHER if number % 2 else TEXT}
    for number in range(24)
]


def assert_answered(replies: Sequence[dict[str, Any]], model: Trained) -> None:
    """Each reply is that of the question by itself, but for rounding; they are in order."""
    for reply, question in zip(replies, QUESTIONS, strict=True):
        expected = ask(model, question["question"], question["context"], 0.0)
        assert reply["probability"] == pytest.approx(expected.probability, abs=1e-4)
        for name in ("question", "answer", "abstained", "start", "end"):
            assert reply[name] == getattr(expected, name)


class Held:
    """`ask_together`, each call held until it is let go; notes how many questions a call had."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.go = Event()

    def __call__(self, trained: Trained, pairs: list[tuple[str, str]], *more: Any) -> Any:
        self.sizes.append(len(pairs))
        assert self.go.wait(60)
        if any(question == "bad" for question, _ in pairs):
            raise RuntimeError("one of them")
        return ask_together(trained, pairs, *more)

    def ask(
        self, port: int, questions: list[dict[str, str]]
    ) -> tuple[list[int], list[dict[str, Any]]]:
        """Return statuses and replies of questions of which all but the first come while it is
        held."""
        with ThreadPoolExecutor(len(questions)) as pool:
            requests = [pool.submit(send, port, questions[0])]
            wait_for(lambda: self.sizes == [1])  # it found the model idle: nothing is waited for
            requests += [pool.submit(send, port, question) for question in questions[1:]]
            wait_for(lambda: meter(port, "waiting") == len(questions) - 1)
            self.go.set()
            responses = [request.result() for request in requests]
        statuses = [status for status, _, _ in responses]
        return statuses, [reply for _, _, reply in responses]


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Held:
    held = Held()
    monkeypatch.setattr(server, "ask_together", held)
    monkeypatch.setattr(web, "SECONDS", 300.0)  # however busy the machine is
    return held


def test_rows(model: Trained, held: Held) -> None:
    """Questions that wait share rows."""
    with serving_here(model) as port:
        statuses, replies = held.ask(port, QUESTIONS)
    assert held.sizes == [1, 23]
    assert statuses == [200] * 24
    assert_answered(replies, model)


def test_many_questions_are_spread_over_the_threads(
    model: Trained, held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list that finds three threads idle; all cores for one question that does."""
    monkeypatch.setattr(server.torch, "get_num_threads", lambda: 3)
    cores = []
    monkeypatch.setattr(server.torch, "set_num_threads", cores.append)
    held.go.set()
    with serving_here(model) as port:
        status, _, replies = send(port, QUESTIONS, "/answers")
        assert status == 200
        assert sum(held.sizes) == 24
        assert max(held.sizes) == 8
        assert_answered(replies, model)
        assert set(cores) == {1}

        assert send(port, ASKED)[0] == 200
        assert cores[-1] == 3


def test_a_client_that_leaves_is_noticed(
    model: Trained, held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it asked is dropped while it waits, and ends before the next row if it is computed."""
    rows = []

    def evaluate(*arguments: Any) -> Any:
        rows.append(arguments)
        return evaluate_row(*arguments)

    monkeypatch.setattr(answering, "evaluate_row", evaluate)
    question = {"question": "Who?", "context": TEXT * 400}  # some rows
    with serving_here(model) as port, contextlib.ExitStack() as leaving:
        for number in range(3):
            connection = leaving.enter_context(connected(port))
            connection.request("POST", "/answer", json.dumps(question), JSON)
            wait_for(lambda: held.sizes == [1] and meter(port, "waiting") == number)  # noqa: B023
        leaving.close()
        wait_for(lambda: b'path="/answer",status="499"} 3.0' in get(port, "/metrics")[2])
        held.go.set()
        assert send(port, ASKED)[0] == 200
    assert held.sizes == [1, 1]
    assert len(rows) == 1


def test_no_more_than_a_row_is_taken_at_a_time(model: Trained, held: Held) -> None:
    long = {"question": "Who?", "context": "It sank. " * 1000}  # 9,000 of 3 * 4096 characters
    with serving_here(model) as port:
        statuses, _ = held.ask(port, [long] * 4)
    assert statuses == [200] * 4
    assert held.sizes == [1, 1, 1, 1]


def test_a_question_that_fails_fails_alone(model: Trained, held: Held) -> None:
    bad = {"question": "bad", "context": TEXT}
    with serving_here(model) as port:
        statuses, replies = held.ask(port, [QUESTIONS[0], bad, QUESTIONS[1]])
    assert statuses == [200, 500, 200]
    assert "the server's log says how" in replies[1]["error"]


@pytest.fixture(scope="module")
def port(model: Trained) -> Iterator[int]:
    names = served_names("::1", ["Ask.Example"])
    with serving_here(model, names=names, token="secret") as port:
        yield port


def test_a_list_is_answered_in_order(port: int, model: Trained) -> None:
    def post(body: Any) -> tuple[int, Any]:
        status, _, reply = send(port, body, "/answers", Authorization="Bearer secret")
        return status, reply

    status, replies = post(QUESTIONS)
    assert status == 200
    assert_answered(replies, model)

    status, reply = post([ASKED, {"question": " ", "context": "b"}])
    assert status == 422
    assert "the question is empty" in reply["error"]
    status, _ = post([])
    assert status == 422
    status, reply = post([ASKED] * 65)  # more than may wait
    assert status == 503
    assert "too many questions" in reply["error"]


SERVED = "localhost LOCALHOST:80 127.0.0.1:9 [::1]:8000 [::1] ask.example:1234 ask.example".split()
OTHERS = [
    "evil.example",
    "ask.example.evil.example",
    "127.0.0.1.evil.example",
    "localhost:80:80",
    "0.0.0.0",
    "localhost:b",
]


def test_only_its_own_names_are_served(port: int) -> None:
    for host in (*SERVED, *OTHERS):
        for path in ("/", "/openapi.json", "/health"):
            status, _, body = get(port, path, Host=host, Authorization="Bearer secret")
            if host in SERVED or path == "/health":
                assert status == 200, host
            else:
                assert status == 400, host
                assert list(json.loads(body)) == ["error"]


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_a_server_on_all_addresses_has_the_machines_names(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    addresses = [
        SimpleNamespace(family=socket.AF_INET, address="10.1.2.3"),
        SimpleNamespace(family=socket.AF_INET6, address="fe80::A%eth0"),
        SimpleNamespace(family=psutil.AF_LINK, address="aa:bb"),
    ]
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: {"eth0": addresses})
    monkeypatch.setattr(socket, "gethostname", lambda: "Box")
    monkeypatch.setattr(socket, "getfqdn", lambda: "box.example")
    own = {"10.1.2.3", "[fe80::a]", "box", "box.example"}

    names = served_names(host, ["api.example"])

    assert names - LOOPBACK - {"0.0.0.0", "[::]"} == own | {"api.example"}
    assert own.isdisjoint(served_names("192.0.2.1", []))
    who = "whoever reaches it as 10.1.2.3, [fe80::a], api.example, box, box.example"
    assert describe_access(host, names, None) == f"{who} may ask, without a token"
    access = "programs on this machine may ask, with the token"
    assert describe_access("127.0.0.1", LOOPBACK, "secret") == access


def test_only_with_the_token_it_answers(port: int) -> None:
    for scheme in ("Bearer", "bearer"):  # RFC 9110: any case
        assert send(port, ASKED, Authorization=f"{scheme} secret")[0] == 200

    wrong = ["", "secret", "Bearer", "Bearer secre", "basic secret"]
    headers = [{}, *({"Authorization": value} for value in wrong)]
    for header in headers:
        for path in ("/answer", "/answers", "/nowhere"):
            status, _, reply = send(port, ASKED, path, **header)
            assert status == 401, header
            assert "Authorization: Bearer TOKEN" in reply["error"]

    # A probe asks by another name: for metrics it needs the token, too, and for the rest none.
    assert get(port, "/metrics")[0] == 401
    assert get(port, "/metrics", Host="probe.example")[0] == 401
    probe = {"Host": "probe.example", "Authorization": "Bearer secret"}
    assert get(port, "/metrics", **probe)[0] == 200
    assert get(port, "/")[0] == 200
    assert get(port, "/health")[0] == 200


def test_the_token_may_be_in_a_file_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ALBERT_TOKEN", raising=False)
    assert read_token(None, None) is None

    monkeypatch.setenv("ALBERT_TOKEN", "of the environment")
    (tmp_path / "token").write_text("of the file\n")
    (tmp_path / "empty").write_text("\n")
    assert read_token(None, None) == "of the environment"
    assert read_token("given", None) == "given"
    assert read_token(None, tmp_path / "token") == "of the file"
    with pytest.raises(UserError, match="--token: empty"):
        read_token(None, tmp_path / "empty")
    with pytest.raises(UserError, match="--token-file .*none: cannot read"):
        read_token(None, tmp_path / "none")


COUNTS = {
    'requests_total{path="/answer",status="200"}': 3,
    'requests_total{path="/answer",status="422"}': 1,
    'requests_total{path="other",status="404"}': 1,
    'request_seconds_count{path="/answer"}': 4,
    "row_tokens_count": 3,
    "waiting": 0,
}


def test_what_is_counted(model: Trained) -> None:
    with serving_here(model) as port:
        assert json.loads(get(port, "/health")[2]) == {
            "status": "ok",
            "model": "albert",
            "name": model.name,
            "base": "albert-tiny",
            "scores": {name: model.scores[name] for name in ("exact", "f1", "total")},
            "max_question": 10_000,
            "max_context": web.CONTEXT,
        }
        for _ in range(3):
            send(port, ASKED)
        send(port, {"question": "a"})
        get(port, "/etc/passwd")

        for name, count in COUNTS.items():
            assert meter(port, name) == count, name
        assert get(port, "/metrics")[1]["content-type"].startswith("text/plain")


CLIENTS = 100
ROUNDS = 8  # each of the file's questions is asked so many times


class Nuisances:
    """Clients that send 10 MB or do not wait, each again and again until `over` is set."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.over = Event()

    def send_much(self) -> Counter:
        outcomes: Counter = Counter()
        while not self.over.is_set():
            status, _, _ = send(self.port, b" " * 10 * 2**20)
            outcomes[f"10 MB: {status}"] += 1
        return outcomes

    def leave(self) -> Counter:
        outcomes: Counter = Counter()
        while not self.over.is_set():
            with connected(self.port) as connection:
                connection.request("POST", "/answer", b'{"question": "Who?", "context": "A."}')
            outcomes["left"] += 1
        return outcomes


def ask_until_there_is_room(port: int, example: Example) -> tuple[str, str]:
    """Return a question's id and its answer."""
    question = {"question": example.question, "context": example.context}
    status, _, reply = send(port, question)
    while status == 503:
        time.sleep(0.2)
        status, _, reply = send(port, question)
    assert status == 200, reply
    return example.id, reply["answer"]


@pytest.mark.soak
def test_a_crowd_is_served(local_run: LocalRun, python: str, tmp_path: Path) -> None:
    """A hundred clients ask, beside some that send 10 MB or do not wait; memory does not grow."""
    out = tmp_path / "out"
    command = [python, "predict.py", "--model", local_run.path]
    by_file = ["--data", local_run.questions, "--output-dir", out]
    subprocess.run([*command, *by_file], cwd=ROOT, check=True)
    predictions = json.loads((out / "predictions.json").read_text())
    expected = {name: answer.strip() for name, answer in predictions.items()}
    examples = list(read_questions(local_run.questions))

    process, port = start([*command, "--serve", "--port", "0"])
    served = psutil.Process(listening(port))
    memory = []  # bytes, after each round
    nuisances = Nuisances(port)
    try:
        with ThreadPoolExecutor(CLIENTS) as clients, ThreadPoolExecutor(8) as others:
            tasks = [others.submit(nuisances.send_much)]
            tasks += [others.submit(nuisances.leave) for _ in range(2)]
            for _ in range(ROUNDS):
                answers = clients.map(partial(ask_until_there_is_room, port), examples)
                assert dict(answers) == expected
                memory.append(served.memory_info().rss)
            nuisances.over.set()
            outcomes = sum((task.result() for task in tasks), Counter())
        count = meter(port, 'requests_total{path="/answer",status="200"}')
    finally:
        process.kill()

    assert set(outcomes) == {"10 MB: 413", "left"}
    own = ROUNDS * len(examples)
    assert own <= count <= own + outcomes["left"]
    assert memory[-1] <= 1.05 * max(memory[:2]), memory
